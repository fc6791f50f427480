"""Ranges, plans and written slices: the same bytes as in the model, readable by gguf-py, and never half a file."""

from __future__ import annotations

import errno
import io
import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as QuantType
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.errors import GGUFError, SliceError
from kvasir.experts import ExpertRange
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.expert_ranges import merge_ranges, parse_ranges
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slices import SlicePlan, model_experts, plan_slice, write_slice
from tests.unit.moe_files import ModelSpec, write_model

LAYOUTS = {
    "plain": ModelSpec(),
    "mixed types": ModelSpec(down_types=(QuantType.F32, QuantType.F16, QuantType.Q8_0)),
    "fused": ModelSpec(is_fused=True),
    "biases": ModelSpec(has_bias=True),
    "fused, biases": ModelSpec(is_fused=True, has_bias=True),
    "split": ModelSpec(tensors_per_part=2),
    "dense first, MTP last": ModelSpec(n_layer=4, n_mtp_layer=1, dense_layers=(0,)),
    "unaligned": ModelSpec(d_model=5, d_ff=3, gate_type=QuantType.F32, down_types=(QuantType.F32,), has_bias=True),
    "odd types": ModelSpec(d_model=96, d_ff=32, gate_type=QuantType.Q4_0, down_types=(QuantType.Q5_0,)),
}
RANGES = "1:0-2,2:5-6,1:4-5,1:1-3,2:0-1"
HELD = {1: [0, 1, 2, 4], 2: [0, 5]}


def plan_of(path: Path, ranges: str) -> SlicePlan:
    with GGUFIndex.open(path) as index:
        card = ModelCard.from_index(index)
        return plan_slice(index, card, parse_ranges(ranges, card.moe_layers))


# ---- ranges ------------------------------------------------------------------------------------------------------


def test_ranges_are_parsed() -> None:
    assert parse_ranges("0:0-8, 3:4-5") == (ExpertRange(0, 0, 8), ExpertRange(3, 4, 5))
    assert parse_ranges("*:2-4", [1, 5]) == (ExpertRange(1, 2, 4), ExpertRange(5, 2, 4))


@pytest.mark.parametrize(
    "piece", ["", "0", "0:1", "0:1-", "a:0-1", "0:-1-2", "0:0-1:2", "0:0..8", "1e3:0-1", "٣:0-1", "0:0-9999999999"]
)
def test_a_bad_piece_is_named(piece: str) -> None:
    with pytest.raises(SliceError, match="is not LAYER:START-STOP") as caught:
        parse_ranges(f"0:0-1,{piece}")
    assert repr(piece) in str(caught.value)


def test_empty_ranges_and_stars_without_a_model_are_refused() -> None:
    with pytest.raises(SliceError, match="'0:3-3' is empty"):
        parse_ranges("0:3-3")
    with pytest.raises(SliceError, match="needs a model"):
        parse_ranges("*:0-1")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 9)), max_size=8))
def test_merging_keeps_exactly_the_experts(pieces: list[tuple[int, int, int]]) -> None:
    ranges = [ExpertRange(layer, start, start + count) for layer, start, count in pieces]
    merged = merge_ranges(ranges)
    wanted = sorted({(item.layer, expert) for item in ranges for expert in range(item.start, item.stop)})
    assert [(item.layer, expert) for item in merged for expert in range(item.start, item.stop)] == wanted
    for before, after in itertools.pairwise(merged):
        assert before.layer < after.layer or before.stop < after.start


@pytest.mark.parametrize(
    ("ranges", "message"),
    [("0:0-7", "0:0-7 is not in the model: layer 0 has experts 0 to 5"), ("3:0-1", "layer 3 has no experts")],
)
def test_a_range_outside_the_model_is_refused_and_never_clipped(tmp_path: Path, ranges: str, message: str) -> None:
    with pytest.raises(SliceError, match=message):
        plan_of(write_model(tmp_path / "m.gguf"), ranges)


def test_a_slice_of_nothing_is_refused(tmp_path: Path) -> None:
    with GGUFIndex.open(write_model(tmp_path / "m.gguf")) as index, pytest.raises(SliceError, match="at least one"):
        plan_slice(index, ModelCard.from_index(index), [])


# ---- bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gguf_py_reads_the_same_bytes_from_slice_and_model(tmp_path: Path, layout: str) -> None:
    path = write_model(tmp_path / "m.gguf", LAYOUTS[layout])
    write_slice(plan_of(path, RANGES), tmp_path / "slice.gguf")
    parts = [path] if path.name == "m.gguf" else sorted(tmp_path.glob("m-*.gguf"))
    model = {tensor.name: tensor for part in parts for tensor in gguf.GGUFReader(part).tensors}
    cut = gguf.GGUFReader(tmp_path / "slice.gguf")
    wanted_names = {name for name in model if "_exps" in name and name.startswith(("blk.1.", "blk.2."))}
    assert {tensor.name for tensor in cut.tensors} == wanted_names
    for tensor in cut.tensors:
        source, ids = model[tensor.name], HELD[int(tensor.name[4])]
        assert tensor.tensor_type == source.tensor_type
        assert tensor.shape.tolist() == [*source.shape.tolist()[:-1], len(ids)]
        assert np.array_equal(tensor.data, source.data[ids])
        assert tensor.data_offset % 32 == 0


def test_metadata_says_what_the_slice_is(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    with GGUFIndex.open(path) as index:
        fingerprint = ModelCard.from_index(index).fingerprint
    write_slice(plan_of(path, RANGES), tmp_path / "slice.gguf")
    reader = gguf.GGUFReader(tmp_path / "slice.gguf")
    assert {key: item.contents() for key, item in reader.fields.items() if not key.startswith("GGUF.")} == {
        "general.architecture": "qwen3moe",
        "general.name": "tiny: 6 experts",
        "kvasir.slice.version": 1,
        "kvasir.slice.model": "tiny",
        "kvasir.slice.fingerprint": fingerprint,
        "kvasir.slice.n_layer": 3,
        "kvasir.slice.n_expert": 6,
        "kvasir.slice.d_model": 64,
        "kvasir.slice.d_ff": 32,
        "kvasir.slice.layers": [1, 1, 2, 2],
        "kvasir.slice.starts": [0, 4, 0, 5],
        "kvasir.slice.stops": [3, 5, 1, 6],
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_byte_range_of_a_plan_is_that_of_the_file(tmp_path: Path, layout: str) -> None:
    plan = plan_of(write_model(tmp_path / "m.gguf", LAYOUTS[layout]), RANGES)
    write_slice(plan, tmp_path / "slice.gguf")
    data = (tmp_path / "slice.gguf").read_bytes()
    assert len(data) == plan.n_bytes
    assert b"".join(plan.read()) == data
    edges = [0, 1, len(plan.header), plan.n_bytes]
    edges += [
        edge for item in plan.byte_ranges for edge in (item.position - 1, item.position, item.stop, item.stop + 1)
    ]
    edges = sorted({edge for edge in edges if 0 <= edge <= plan.n_bytes})
    for start in edges:
        for stop in (edge for edge in edges if edge >= start):
            assert b"".join(plan.read(start, stop)) == data[start:stop]


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 1 << 40)])
def test_byte_ranges_outside_the_slice_are_refused(tmp_path: Path, start: int, stop: int) -> None:
    plan = plan_of(write_model(tmp_path / "m.gguf"), "0:0-1")
    with pytest.raises(SliceError, match=f"bytes {start} to {stop} are not in"):
        plan.read(start, stop)


def test_equal_models_give_equal_slices(tmp_path: Path) -> None:
    one = b"".join(plan_of(write_model(tmp_path / "m.gguf"), RANGES).read())
    split = b"".join(plan_of(write_model(tmp_path / "s.gguf", ModelSpec(tensors_per_part=3)), RANGES).read())
    assert one == split


def test_experts_above_4_gib_are_cut_right(tmp_path: Path) -> None:
    """A sparse file: 4096 x 1024 experts of 16 MiB a matrix put the last expert of layer 0 above 4 GiB."""
    n_expert, d_model, d_ff = 300, 1024, 4096
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(str(path), "qwen3moe")
    for key, value in {"block_count": 1, "embedding_length": d_model, "expert_used_count": 2}.items():
        writer.add_uint32(f"qwen3moe.{key}", value)
    shapes = {"gate": (n_expert, d_ff, d_model), "up": (n_expert, d_ff, d_model), "down": (n_expert, d_model, d_ff)}
    for role, shape in shapes.items():
        n_bytes = int(np.prod(shape)) * 4
        writer.add_tensor_info(f"blk.0.ffn_{role}_exps.weight", shape, np.dtype(np.float32), n_bytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    data_start = -(-path.stat().st_size // 32) * 32
    os.truncate(path, data_start + 3 * n_expert * d_ff * d_model * 4)
    with GGUFIndex.open(path) as index:
        card = ModelCard.from_index(index)
        marks = {role: np.random.default_rng(len(role)).bytes(64) for role in shapes}
        with path.open("r+b") as file:
            for role, mark in marks.items():
                info = index.tensors[f"blk.0.ffn_{role}_exps.weight"]
                file.seek(info.offset + info.n_bytes - len(mark))
                file.write(mark)
    with GGUFIndex.open(path) as index:
        plan = plan_slice(index, card, [ExpertRange(0, n_expert - 1, n_expert)])
        assert [item.offset > 4 << 30 for item in plan.byte_ranges] == [True] * 3
        write_slice(plan, tmp_path / "slice.gguf")
        experts = model_experts(index, card, 0)
        assert [stack.data[-1, -64:].tobytes() for stack in (experts.gate, experts.up, experts.down)] == list(
            marks.values()
        )
    cut = gguf.GGUFReader(tmp_path / "slice.gguf")
    assert [tensor.data.tobytes()[-64:] for tensor in cut.tensors] == list(marks.values())


# ---- model_experts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_bias", [False, True])
def test_fused_experts_are_strided_views_of_the_same_weights(tmp_path: Path, has_bias: bool) -> None:
    path = write_model(tmp_path / "m.gguf", ModelSpec(is_fused=True, has_bias=has_bias))
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    with GGUFIndex.open(path) as index:
        experts = model_experts(index, ModelCard.from_index(index), 1)
    both = tensors["blk.1.ffn_gate_up_exps.weight"]
    assert np.array_equal(experts.gate.data, both[:, :32].reshape(6, -1))
    assert np.array_equal(experts.up.data, both[:, 32:].reshape(6, -1))
    assert np.array_equal(experts.down.data, tensors["blk.1.ffn_down_exps.weight"].reshape(6, -1))
    assert not experts.gate.data.flags.owndata
    if has_bias:
        bias = tensors["blk.1.ffn_gate_up_exps.bias"]
        assert experts.gate_bias is not None and np.array_equal(experts.gate_bias, bias[:, :32])
        assert experts.up_bias is not None and np.array_equal(experts.up_bias, bias[:, 32:])
        assert experts.down_bias is not None
        assert np.array_equal(experts.down_bias, tensors["blk.1.ffn_down_exps.bias"])


def test_a_layer_without_experts_gives_none(tmp_path: Path) -> None:
    with GGUFIndex.open(write_model(tmp_path / "m.gguf", ModelSpec(dense_layers=(0,)))) as index:
        card = ModelCard.from_index(index)
        with pytest.raises(SliceError, match="layer 0 has no experts"):
            model_experts(index, card, 0)


# ---- writing -----------------------------------------------------------------------------------------------------


def left_behind(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if "partial" in path.name]


def test_progress_counts_true_bytes(tmp_path: Path) -> None:
    plan = plan_of(write_model(tmp_path / "m.gguf"), "*:0-6")
    seen: list[tuple[int, int]] = []
    write_slice(plan, tmp_path / "slice.gguf", lambda done, total: seen.append((done, total)))
    assert {total for _, total in seen} == {plan.n_bytes}
    counts = [done for done, _ in seen]
    assert counts == sorted(counts)
    assert counts[-1] == plan.n_bytes
    assert left_behind(tmp_path) == []


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(write_model(tmp_path / "m.gguf"), RANGES)

    class Grudging(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(memoryview(data)[:100])

    monkeypatch.setattr(Path, "open", lambda path, mode, buffering: Grudging(path, mode.replace("b", "")))
    write_slice(plan, tmp_path / "slice.gguf")
    monkeypatch.undo()
    assert (tmp_path / "slice.gguf").read_bytes() == b"".join(plan.read())


@pytest.mark.parametrize(("code", "message"), [(errno.ENOSPC, "disk is full"), (errno.EIO, "cannot be written")])
def test_a_failing_disk_leaves_nothing_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, message: str
) -> None:
    plan = plan_of(write_model(tmp_path / "m.gguf"), RANGES)
    (tmp_path / "slice.gguf").write_bytes(b"old")

    def fail(*arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SliceError, match=message):
        write_slice(plan, tmp_path / "slice.gguf")
    assert (tmp_path / "slice.gguf").read_bytes() == b"old"
    assert left_behind(tmp_path) == []


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    plan = plan_of(write_model(tmp_path / "m.gguf"), "*:0-6")

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_slice(plan, tmp_path / "slice.gguf", interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf"]


def test_too_little_space_is_found_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(write_model(tmp_path / "m.gguf"), RANGES)
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SliceError, match=f"needs {plan.n_bytes} bytes, the disk has 1000 free"):
        write_slice(plan, tmp_path / "slice.gguf")


def test_bad_targets_are_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf")
    before = model.read_bytes()
    plan = plan_of(model, RANGES)
    (tmp_path / "link.gguf").symlink_to(model)
    for path, message in (
        (model, "file of the model itself"),
        (tmp_path / "link.gguf", "file of the model itself"),
        (tmp_path, "is a directory"),
        (tmp_path / "none" / "s.gguf", "does not exist"),
    ):
        with pytest.raises(SliceError, match=message):
            write_slice(plan, path)
    assert model.read_bytes() == before


def test_a_model_that_changed_since_planning_is_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf")
    plan = plan_of(model, RANGES)
    data = model.read_bytes()
    model.write_bytes(data + b"more")
    with pytest.raises(GGUFError, match="has changed since it was indexed"):
        write_slice(plan, tmp_path / "slice.gguf")
    with pytest.raises(GGUFError, match="has changed since it was indexed"):
        list(plan.read())
    model.unlink()
    with pytest.raises(GGUFError, match="cannot be opened"):
        write_slice(plan, tmp_path / "slice.gguf")
    assert list(tmp_path.iterdir()) == []
