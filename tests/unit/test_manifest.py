"""Manifests: one SHA-256 an expert, the same from model and slice, and a broken expert is named."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import gguf
import pytest

from kvasir.errors import SliceError
from kvasir.experts import ExpertRange
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.expert_ranges import parse_ranges
from kvasir.slicing.manifest import ExpertKey, Manifest
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slice_file import SliceFile
from kvasir.slicing.slices import plan_slice, write_slice
from tests.unit.moe_files import ModelSpec, write_model

RANGES = "1:0-2,2:5-6,1:4-5"
KEYS = [(1, 0), (1, 1), (1, 4), (2, 5)]


def manifest_of(model: Path, ranges: str | None = None) -> Manifest:
    with GGUFIndex.open(model) as index:
        return Manifest.of_model(index, ModelCard.from_index(index), None if ranges is None else parse_ranges(ranges))


def cut(model: Path, ranges: str = RANGES) -> Path:
    with GGUFIndex.open(model) as index:
        write_slice(plan_slice(index, ModelCard.from_index(index), parse_ranges(ranges)), model.with_name("slice.gguf"))
    return model.with_name("slice.gguf")


def test_a_digest_runs_over_the_stored_bytes_in_the_stated_order(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", ModelSpec(has_bias=True))
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    manifest = manifest_of(path)
    assert len(manifest.experts) == 18
    for (layer, expert), digest in manifest.experts.items():
        stored = b"".join(
            tensors[f"blk.{layer}.ffn_{role}_exps.{kind}"][expert].tobytes()
            for kind in ("weight", "bias")
            for role in ("gate", "up", "down")
        )
        assert (digest.n_bytes, digest.sha256) == (len(stored), hashlib.sha256(stored).hexdigest())


def test_slice_and_model_have_the_same_digests(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", ModelSpec(has_bias=True))
    with SliceFile.open(cut(path)) as slice_file:
        ours = Manifest.of_slice(slice_file)
        whole = manifest_of(path)
        assert sorted(ours.experts) == KEYS
        assert ours == manifest_of(path, RANGES)
        assert all(whole.experts[key] == digest for key, digest in ours.experts.items())
        seen: list[tuple[int, int]] = []
        whole.verify(slice_file, lambda done, total: seen.append((done, total)))
        assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_fusing_gate_and_up_changes_no_digest(tmp_path: Path) -> None:
    """The bytes of one fused expert are those of its gate followed by those of its up."""
    path = write_model(tmp_path / "m.gguf", ModelSpec(is_fused=True, has_bias=True))
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    block = "blk.0.ffn_"
    names = [f"{block}{role}_exps.{kind}" for kind in ("weight", "bias") for role in ("gate_up", "down")]
    stored = b"".join(tensors[name][3].tobytes() for name in names)
    assert manifest_of(path).experts[ExpertKey(0, 3)].sha256 == hashlib.sha256(stored).hexdigest()


@pytest.mark.parametrize("key", KEYS)
def test_a_broken_expert_is_named(tmp_path: Path, key: tuple[int, int]) -> None:
    model = write_model(tmp_path / "m.gguf")
    path = cut(model)
    layer, expert = key
    with SliceFile.open(path) as slice_file, GGUFIndex.open(path) as index:
        info = index.tensors[f"blk.{layer}.ffn_up_exps.weight"]
        place = info.offset + info.n_bytes // info.shape[0] * (slice_file.local_id(layer, expert) + 1) - 1
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with (
        SliceFile.open(path) as slice_file,
        pytest.raises(SliceError, match=f"expert {expert} of layer {layer} is broken"),
    ):
        manifest_of(model).verify(slice_file)


def test_a_slice_of_another_model_or_with_unknown_experts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write_model(tmp_path / "other" / "m.gguf", ModelSpec(seed=1))
    model = write_model(tmp_path / "m.gguf")
    with SliceFile.open(cut(model)) as slice_file:
        with pytest.raises(SliceError, match=r"is of model .*, the manifest of"):
            manifest_of(other).verify(slice_file)
        with pytest.raises(SliceError, match="expert 1 of layer 1 is not in the manifest"):
            manifest_of(model, "1:0-1").verify(slice_file)


def test_ranges_outside_the_model_are_refused(tmp_path: Path) -> None:
    with GGUFIndex.open(write_model(tmp_path / "m.gguf")) as index:
        card = ModelCard.from_index(index)
        with pytest.raises(SliceError, match="0:0-7 is not in the model"):
            Manifest.of_model(index, card, [ExpertRange(0, 0, 7)])


def test_saving_and_loading_keeps_everything(tmp_path: Path) -> None:
    manifest = manifest_of(write_model(tmp_path / "m.gguf"))
    manifest.save(tmp_path / "m.json")
    assert Manifest.load(tmp_path / "m.json") == manifest
    content = json.loads((tmp_path / "m.json").read_text())
    assert content["order"] == "gate weights, up weights, down weights, gate bias, up bias, down bias"
    assert set(content["experts"]["0/3"]) == {"bytes", "sha256"}
    with pytest.raises(SliceError, match="cannot be written"):
        manifest.save(tmp_path / "none" / "m.json")


GOOD: dict[str, object] = {"format": "kvasir-manifest-1", "model": "m", "fingerprint": "0" * 64, "experts": {}}
ENTRY = {"bytes": 1, "sha256": "0" * 64}
BAD = {
    "no json": (b"{", "cannot be read"),
    "no utf-8": (b'"\xff"', "cannot be read"),
    "deeply nested": (b"[" * 100_000, "cannot be read"),
    "a list": (b"[]", "its format is not"),
    "other format": (json.dumps(GOOD | {"format": "x"}).encode(), "its format is not"),
    "no experts": (json.dumps(GOOD | {"experts": []}).encode(), "needs model, fingerprint and experts"),
    "bad key": (json.dumps(GOOD | {"experts": {"0-1": ENTRY}}).encode(), "'0-1' is not an expert"),
    "leading zero": (json.dumps(GOOD | {"experts": {"00/1": ENTRY}}).encode(), "'00/1' is not an expert"),
    "bad entry": (json.dumps(GOOD | {"experts": {"0/1": 5}}).encode(), "expert 0/1 needs bytes"),
    "bad size": (json.dumps(GOOD | {"experts": {"0/1": ENTRY | {"bytes": True}}}).encode(), "expert 0/1 needs bytes"),
    "bad hash": (json.dumps(GOOD | {"experts": {"0/1": ENTRY | {"sha256": "A" * 64}}}).encode(), "64 hex digits"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_manifest_is_refused(tmp_path: Path, case: str) -> None:
    data, message = BAD[case]
    (tmp_path / "m.json").write_bytes(data)
    with pytest.raises(SliceError, match=message):
        Manifest.load(tmp_path / "m.json")


def test_a_missing_or_huge_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SliceError, match="cannot be read"):
        Manifest.load(tmp_path / "none.json")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SliceError, match="at most 67108864 bytes"):
        Manifest.load(tmp_path / "huge.json")
