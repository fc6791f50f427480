"""Slices read back: their experts are the model's, and a file that is not what it says is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as QuantType
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.errors import GGUFError, SliceError, UnsupportedModelError
from kvasir.experts import ExpertRange, ExpertStack
from kvasir.gguf.header import HeaderValue, encode_header
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.expert_ranges import parse_ranges
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slice_file import SliceFile
from kvasir.slicing.slices import model_experts, plan_slice, write_slice
from tests.unit.moe_files import CLEAR_ERRORS, ModelSpec, write_model

PLAIN = ModelSpec()
RANGES = "1:0-2,2:5-6,1:4-5"
HELD = {1: [0, 1, 4], 2: [5]}


def cut(folder: Path, spec: ModelSpec = PLAIN, ranges: str = RANGES) -> Path:
    with GGUFIndex.open(write_model(folder / "m.gguf", spec)) as index:
        card = ModelCard.from_index(index)
        write_slice(plan_slice(index, card, parse_ranges(ranges, card.moe_layers)), folder / "slice.gguf")
    return folder / "slice.gguf"


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec(),
        ModelSpec(is_fused=True),
        ModelSpec(has_bias=True),
        ModelSpec(is_fused=True, has_bias=True),
        ModelSpec(down_types=(QuantType.F32, QuantType.F16)),
        ModelSpec(tensors_per_part=3),
    ],
    ids=str,
)
def test_a_slice_holds_the_models_experts(tmp_path: Path, spec: ModelSpec) -> None:
    path = cut(tmp_path, spec)
    with GGUFIndex.open(write_model(tmp_path / "m.gguf", spec)) as index, SliceFile.open(path) as slice_file:
        card = ModelCard.from_index(index)
        assert slice_file.model_fingerprint == card.fingerprint
        assert (slice_file.model_name, slice_file.architecture) == ("tiny", "qwen3moe")
        assert slice_file.n_bytes == path.stat().st_size
        assert sorted(slice_file.layers) == [1, 2]
        for layer, ids in HELD.items():
            ours, whole = slice_file.layers[layer], model_experts(index, card, layer)
            assert (ours.layer, ours.n_expert, ours.d_model, ours.d_ff) == (layer, len(ids), 64, 32)
            for role in ("gate", "up", "down"):
                mine: ExpertStack = getattr(ours, role)
                assert mine.quant_type == getattr(whole, role).quant_type
                assert np.array_equal(mine.data, getattr(whole, role).data[ids])
                bias = getattr(ours, f"{role}_bias")
                assert (bias is None) == (not spec.has_bias)
                if bias is not None:
                    assert np.array_equal(bias, getattr(whole, f"{role}_bias")[ids])


def test_ranges_and_local_ids(tmp_path: Path) -> None:
    with SliceFile.open(cut(tmp_path)) as slice_file:
        assert slice_file.ranges == (ExpertRange(1, 0, 2), ExpertRange(1, 4, 5), ExpertRange(2, 5, 6))
        assert slice_file.n_experts == 4
        for layer, ids in HELD.items():
            assert slice_file.expert_ids(layer) == tuple(ids)
            assert [slice_file.local_id(layer, expert_id) for expert_id in ids] == list(range(len(ids)))
        for layer, expert_id in ((1, 2), (1, 5), (2, 0), (0, 0), (1, -1)):
            with pytest.raises(SliceError, match=f"does not hold expert {expert_id} of layer {layer}"):
                slice_file.local_id(layer, expert_id)


def test_weights_are_mapped_and_outlive_the_slice(tmp_path: Path) -> None:
    with SliceFile.open(cut(tmp_path)) as slice_file:
        gate = slice_file.layers[1].gate.data
        before = gate.tobytes()
    assert not gate.flags.owndata
    assert not gate.flags.writeable
    assert gate.tobytes() == before


def test_a_whole_model_is_no_slice(tmp_path: Path) -> None:
    with pytest.raises(SliceError, match="is not a slice"):
        SliceFile.open(write_model(tmp_path / "m.gguf"))


# ---- contradictions ----------------------------------------------------------------------------------------------


def forge(path: Path, changes: dict[str, HeaderValue | None], *, rename: tuple[str, str] = ("", "")) -> Path:
    """The same tensors and data under other metadata (None leaves a key out) or tensor names."""
    with GGUFIndex.open(path) as index:
        metadata = {key: value for key, value in (dict(index.metadata) | changes).items() if value is not None}
        start = min(info.offset for info in index.tensors.values())
        data = path.read_bytes()[start:]
        infos = [
            type(info)(info.name.replace(*rename), info.shape, info.quant_type, 0, info.offset - start, info.n_bytes)
            for info in index.tensors.values()
        ]
    forged = path.with_name("forged.gguf")
    forged.write_bytes(encode_header(metadata, infos) + data)  # type: ignore[arg-type]
    return forged


def test_forging_nothing_gives_the_same_slice(tmp_path: Path) -> None:
    path = cut(tmp_path)
    assert forge(path, {}).read_bytes() == path.read_bytes()


KEY = "kvasir.slice."
CONTRADICTIONS: dict[str, tuple[dict[str, HeaderValue | None], str]] = {
    "version": ({KEY + "version": 2}, "slice version 2 is unknown"),
    "no version": ({KEY + "version": None}, "is not a slice"),
    "no fingerprint": ({KEY + "fingerprint": None}, "'kvasir.slice.fingerprint'.* is missing"),
    "fingerprint": ({KEY + "fingerprint": "ABC"}, "not 64 hex digits"),
    "fingerprint type": ({KEY + "fingerprint": 5}, "must be a string"),
    "lengths": ({KEY + "stops": [2, 5]}, "starts and stops have 3, 3, 2 items"),
    "no ranges": ({KEY + "layers": [], KEY + "starts": [], KEY + "stops": []}, "have 0, 0, 0 items"),
    "order": ({KEY + "layers": [1, 2, 1], KEY + "starts": [0, 5, 4], KEY + "stops": [2, 6, 5]}, "are not sorted"),
    "touching": ({KEY + "starts": [0, 2, 5], KEY + "stops": [2, 3, 6]}, "overlap or touch"),
    "empty range": ({KEY + "starts": [0, 5, 5]}, "1:5-5 is not valid"),
    "outside": ({KEY + "n_expert": 5}, "2:5-6 is not in a model of 3 layers of 5 experts"),
    "outside layers": ({KEY + "n_layer": 2}, "2:5-6 is not in a model of 2 layers"),
    "no layers": ({KEY + "n_layer": 0}, "n_layer is 0"),
    "more experts": ({KEY + "stops": [3, 5, 6]}, "layer 1 should have 4 experts .* have 3"),
    "other layer": ({KEY + "layers": [0, 0, 2]}, r"metadata names layers \[0, 2\], the tensors are of \[1, 2\]"),
    "d_model": ({KEY + "d_model": 32}, "experts of 32 x 32, its tensors have 3 of 64 x 32"),
    "d_ff": ({KEY + "d_ff": 64}, "experts of 64 x 64"),
    "layers as number": ({KEY + "layers": 1}, "must be an array of integers"),
    "many ranges": ({KEY + "layers": [1] * 70_000}, "at most 65536 ranges"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_metadata_that_contradicts_the_tensors_is_refused(tmp_path: Path, case: str) -> None:
    changes, message = CONTRADICTIONS[case]
    with pytest.raises((SliceError, GGUFError), match=message):
        SliceFile.open(forge(cut(tmp_path), changes))


def test_surplus_and_missing_tensors_are_refused(tmp_path: Path) -> None:
    path = cut(tmp_path, ModelSpec(has_bias=True))
    with pytest.raises(SliceError, match=r"'blk\.1\.attn\.bias' does not belong in a slice"):
        SliceFile.open(forge(path, {}, rename=("blk.1.ffn_down_exps.bias", "blk.1.attn.bias")))
    with pytest.raises(UnsupportedModelError, match="without a gate"):
        SliceFile.open(forge(path, {}, rename=("blk.1.ffn_gate_exps.weight", "blk.1.attn.weight")))
    with pytest.raises(UnsupportedModelError, match="is not supported"):
        SliceFile.open(forge(path, {}, rename=("blk.1.ffn_gate_exps.bias", "blk.1.ffn_gate_exps.scale")))


# ---- fuzzing -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_slice(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("slice")
    return cut(folder, ModelSpec(n_layer=1, n_expert=3, d_model=32, has_bias=True), "0:0-1,0:2-3").read_bytes()


def opens_or_is_refused(data: bytes, path: Path) -> bool:
    path.write_bytes(data)
    try:
        with SliceFile.open(path) as slice_file:
            for experts in slice_file.layers.values():
                assert experts.n_expert == 2
                assert experts.gate.data.sum() >= 0
    except CLEAR_ERRORS as error:
        assert str(error)
        return False
    return True


def test_every_changed_header_byte_opens_or_gives_a_clear_error(small_slice: bytes, tmp_path: Path) -> None:
    (tmp_path / "s.gguf").write_bytes(small_slice)
    with GGUFIndex.open(tmp_path / "s.gguf") as index:
        data_start = min(info.offset for info in index.tensors.values())
    damaged = bytearray(small_slice)
    n_refused = 0
    for place in range(data_start):
        damaged[place] ^= 0xFF
        n_refused += not opens_or_is_refused(bytes(damaged), tmp_path / "damaged.gguf")
        damaged[place] ^= 0xFF
    assert n_refused > data_start // 2


@settings(max_examples=80, deadline=None)
@given(
    places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4),
    length=st.floats(0, 1.2),
)
def test_random_damage_opens_or_gives_a_clear_error(
    small_slice: bytes, tmp_path_factory: pytest.TempPathFactory, places: list[tuple[float, int]], length: float
) -> None:
    damaged = bytearray(small_slice + bytes(len(small_slice) // 5))
    for where, flip in places:
        damaged[int(where * len(small_slice))] ^= flip
    opens_or_is_refused(bytes(damaged[: int(length * len(small_slice))]), tmp_path_factory.getbasetemp() / "fuzz.gguf")


def test_every_truncation_is_refused(small_slice: bytes, tmp_path: Path) -> None:
    assert opens_or_is_refused(small_slice, tmp_path / "whole.gguf")
    padding = len(small_slice) - len(small_slice.rstrip(b"\0"))
    for n_bytes in range(0, len(small_slice) - padding - 32, 41):
        assert not opens_or_is_refused(small_slice[:n_bytes], tmp_path / "cut.gguf")
