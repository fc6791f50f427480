"""The model card over every layout, what it refuses, and what the fingerprint can and cannot tell apart."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as QuantType

from kvasir.errors import ConfigError, GGUFError, SliceError, UnsupportedModelError
from kvasir.gguf.header import encode_header
from kvasir.gguf.index import GGUFIndex, TensorInfo
from kvasir.slicing.budget import WORKER_OVERHEAD_BYTES, experts_for_budget, whole_layers_for_budget
from kvasir.slicing.model_card import ENGINE_ARCHITECTURES, ModelCard
from kvasir.slicing.model_fingerprint import SAMPLE_BYTES, SAMPLE_COUNT, fingerprint_of
from tests.unit.moe_files import ModelSpec, write_model


def card_of(path: Path) -> ModelCard:
    with GGUFIndex.open(path) as index:
        return ModelCard.from_index(index)


@pytest.mark.parametrize("architecture", [*ENGINE_ARCHITECTURES, "somethingmoe"])
def test_facts_of_every_architecture(tmp_path: Path, architecture: str) -> None:
    spec = ModelSpec(architecture=architecture, down_types=(QuantType.Q8_0, QuantType.F16))
    card = card_of(write_model(tmp_path / "m.gguf", spec))
    assert (card.architecture, card.name) == (architecture, "tiny")
    assert (card.n_layer, card.n_mtp_layer, card.moe_layers) == (3, 0, (0, 1, 2))
    assert (card.n_expert, card.n_used, card.d_model, card.d_ff) == (6, 2, 64, 32)
    assert (card.n_vocab, card.n_ctx) == (40, 512)
    assert card.is_engine_architecture == (architecture != "somethingmoe")
    q8_matrix, f16_matrix = 32 * 64 // 32 * 34, 32 * 64 * 2
    assert [card.expert_bytes(layer) for layer in range(3)] == [
        3 * q8_matrix,
        2 * q8_matrix + f16_matrix,
        3 * q8_matrix,
    ]
    assert card.quant_types(1) == (QuantType.Q8_0, QuantType.Q8_0, QuantType.F16)


def test_bytes_are_those_that_gguf_py_counts(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", ModelSpec(n_layer=4, n_mtp_layer=1, dense_layers=(0,), has_bias=True))
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
    card = card_of(path)
    mtp = sum(n_bytes for name, n_bytes in sizes.items() if name.startswith("blk.4."))
    routed = sum(n_bytes for name, n_bytes in sizes.items() if "_exps" in name) - sum(
        n_bytes for name, n_bytes in sizes.items() if "_exps" in name and name.startswith("blk.4.")
    )
    assert (card.mtp_bytes, card.routed_bytes) == (mtp, routed)
    assert card.dense_bytes == sum(sizes.values()) - mtp - routed
    assert (card.n_layer, card.n_mtp_layer, card.moe_layers) == (4, 1, (1, 2, 3))


def test_fused_gate_up_counts_the_same(tmp_path: Path) -> None:
    apart = card_of(write_model(tmp_path / "a.gguf", ModelSpec(has_bias=True)))
    fused = card_of(write_model(tmp_path / "f.gguf", ModelSpec(has_bias=True, is_fused=True)))
    assert [layer.is_fused for layer in fused.layers] == [True] * 3
    assert [layer.has_bias for layer in fused.layers] == [True] * 3
    assert (fused.expert_bytes(0), fused.d_ff, fused.quant_types(0)) == (
        apart.expert_bytes(0),
        apart.d_ff,
        apart.quant_types(0),
    )


def test_a_layer_without_experts_is_named(tmp_path: Path) -> None:
    card = card_of(write_model(tmp_path / "m.gguf", ModelSpec(dense_layers=(0,))))
    with pytest.raises(SliceError, match="layer 0 has no experts; layers with experts are 1 to 2"):
        card.expert_bytes(0)


REFUSED = {
    "no experts": (ModelSpec(dense_layers=(0, 1, 2)), UnsupportedModelError, "qwen3moe model has no routed experts"),
    "expert scale": (
        ModelSpec(extra_tensors=("blk.1.ffn_gate_exps.scale",)),
        UnsupportedModelError,
        r"'blk\.1\.ffn_gate_exps\.scale' is not supported",
    ),
    "expert scale, other name": (
        ModelSpec(extra_tensors=("blk.1.ffn_down_exps_s",)),
        UnsupportedModelError,
        r"'blk\.1\.ffn_down_exps_s' is not supported",
    ),
    "grouped experts": (
        ModelSpec(extra_tensors=("blk.0.ffn_gate_chexps.weight",)),
        UnsupportedModelError,
        "ffn_gate_chexps",
    ),
    "leading zero": (ModelSpec(extra_tensors=("blk.00.ffn_gate_exps.weight",)), UnsupportedModelError, r"blk\.00"),
    "one tensor per expert": (
        ModelSpec(extra_tensors=("blk.0.ffn_gate.3.weight",)),
        UnsupportedModelError,
        r"'blk\.0\.ffn_gate\.3\.weight' holds a single expert",
    ),
    "no gate": (
        ModelSpec(without=("blk.1.ffn_gate_exps.weight",)),
        UnsupportedModelError,
        "layer 1: .* without a gate",
    ),
    "no down": (ModelSpec(without=("blk.1.ffn_down_exps.weight",)), GGUFError, "layer 1: experts need"),
    "bias of wrong shape": (ModelSpec(extra_tensors=("blk.0.ffn_up_exps.bias",)), GGUFError, r"shape \(4,\)"),
    "count": (ModelSpec(metadata_changes={"expert_count": 7}), GGUFError, "expert_count is 7, .* have 6"),
    "width": (ModelSpec(metadata_changes={"embedding_length": 65}), GGUFError, "embedding_length is 65"),
    "inner width": (ModelSpec(metadata_changes={"expert_feed_forward_length": 1}), GGUFError, "length is 1"),
    "no used": (ModelSpec(metadata_changes={"expert_used_count": 0}), GGUFError, "expert_used_count is 0"),
    "all used": (ModelSpec(metadata_changes={"expert_used_count": 7}), GGUFError, "must be from 1 to 6"),
    "no blocks": (ModelSpec(metadata_changes={"block_count": 0}), GGUFError, "block_count is 0"),
    "many blocks": (ModelSpec(metadata_changes={"block_count": 1 << 31}), GGUFError, "block_count is 2147483648"),
    "all MTP": (ModelSpec(metadata_changes={"nextn_predict_layers": 3}), GGUFError, "nextn_predict_layers is 3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, case: str) -> None:
    spec, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        card_of(write_model(tmp_path / "m.gguf", spec))


def test_unknown_expert_tensors_of_mtp_blocks_do_not_matter(tmp_path: Path) -> None:
    spec = ModelSpec(n_mtp_layer=1, extra_tensors=("blk.3.ffn_gate_exps.scale",))
    assert card_of(write_model(tmp_path / "m.gguf", spec)).moe_layers == (0, 1, 2)


# ---- fingerprint -------------------------------------------------------------------------------------------------


def test_equal_content_has_an_equal_fingerprint(tmp_path: Path) -> None:
    """Whatever the names, the split, the alignment and the format's version."""
    wanted = card_of(write_model(tmp_path / "m.gguf")).fingerprint
    renamed = (tmp_path / "m.gguf").rename(tmp_path / "renamed.gguf")
    assert card_of(renamed).fingerprint == wanted
    for n_tensors in (3, 8):
        split = write_model(tmp_path / f"split{n_tensors}.gguf", ModelSpec(tensors_per_part=n_tensors))
        assert card_of(split).fingerprint == wanted
    assert card_of(write_model(tmp_path / "aligned.gguf", ModelSpec(alignment=256))).fingerprint == wanted
    data = bytearray(renamed.read_bytes())
    data[4] = 2
    (tmp_path / "v2.gguf").write_bytes(data)
    assert card_of(tmp_path / "v2.gguf").fingerprint == wanted


OTHERS = {
    "weights": ModelSpec(seed=1),
    "one byte of an expert": ModelSpec(data_changed_in="blk.1.ffn_up_exps.weight"),
    "one byte of a norm": ModelSpec(data_changed_in="output_norm.weight"),
    "name": ModelSpec(name="other"),
    "metadata": ModelSpec(metadata_changes={"expert_used_count": 3}),
    "architecture": ModelSpec(architecture="olmoe"),
    "vocabulary": ModelSpec(n_vocab=41),
    "types": ModelSpec(down_types=(QuantType.F16,)),
    "a tensor more": ModelSpec(extra_tensors=("extra.weight",)),
    "layout of experts": ModelSpec(is_fused=True),
}


def test_different_content_has_a_different_fingerprint(tmp_path: Path) -> None:
    prints = {"": card_of(write_model(tmp_path / "m.gguf")).fingerprint}
    for number, (case, spec) in enumerate(OTHERS.items()):
        prints[case] = card_of(write_model(tmp_path / f"{number}.gguf", spec)).fingerprint
    assert len(set(prints.values())) == len(prints)


def test_the_tensor_table_counts_even_where_the_bytes_are_equal(tmp_path: Path) -> None:
    tables = {
        "before": ("t", (2, 8), QuantType.F32),
        "name": ("u", (2, 8), QuantType.F32),
        "shape": ("t", (8, 2), QuantType.F32),
        "dimensions": ("t", (16,), QuantType.F32),
        "type": ("t", (4, 8), QuantType.F16),
    }
    prints = set()
    for case, (name, shape, quant_type) in tables.items():
        info = TensorInfo(name, shape, quant_type, 0, 0, 64)
        (tmp_path / case).write_bytes(encode_header({"general.architecture": "x"}, [info]) + bytes(64))
        with GGUFIndex.open(tmp_path / case) as index:
            prints.add(fingerprint_of(index))
    assert len(prints) == len(tables)


@pytest.fixture
def big_tensor(tmp_path: Path) -> Path:
    """One tensor of 1 MiB, so that sampling passes over most of it."""
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "x")
    writer.add_tensor("t", np.random.default_rng(0).standard_normal((256, 1024), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "m.gguf"


def sampled_print(path: Path) -> str:
    with GGUFIndex.open(path) as index:
        return fingerprint_of(index, full_data_bytes=0)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("sample", range(SAMPLE_COUNT))
def test_above_the_limit_samples_are_checked(big_tensor: Path, sample: int) -> None:
    """The stated coverage: a change in any sample shows, one between them shows only in the full hash."""
    with GGUFIndex.open(big_tensor) as index:
        info = index.tensors["t"]
        full = fingerprint_of(index)
    before = sampled_print(big_tensor)
    start = info.offset + (info.n_bytes - SAMPLE_BYTES) * sample // (SAMPLE_COUNT - 1)
    between = start + SAMPLE_BYTES if sample < SAMPLE_COUNT - 1 else start - 1
    flip(big_tensor, between)
    assert sampled_print(big_tensor) == before
    with GGUFIndex.open(big_tensor) as index:
        assert fingerprint_of(index) != full
    flip(big_tensor, start + SAMPLE_BYTES - 1)
    assert sampled_print(big_tensor) != before


def test_small_tensors_are_hashed_whole_above_the_limit_too(tmp_path: Path) -> None:
    wanted = sampled_print(write_model(tmp_path / "m.gguf"))
    for number, name in enumerate(("output_norm.weight", "blk.2.ffn_down_exps.weight")):
        other = write_model(tmp_path / f"{number}.gguf", replace(ModelSpec(), data_changed_in=name))
        assert sampled_print(other) != wanted


def test_full_and_sampled_hashing_differ_only_above_the_limit(big_tensor: Path) -> None:
    with GGUFIndex.open(big_tensor) as index:
        assert fingerprint_of(index, full_data_bytes=1 << 20) == fingerprint_of(index)
        assert fingerprint_of(index, full_data_bytes=(1 << 20) - 1) != fingerprint_of(index)


def test_truncation_during_hashing_is_an_error(big_tensor: Path) -> None:
    with GGUFIndex.open(big_tensor) as index:
        os.truncate(big_tensor, 1 << 19)
        with pytest.raises(GGUFError, match="was truncated"):
            fingerprint_of(index)


# ---- budget ------------------------------------------------------------------------------------------------------


def test_what_a_budget_holds(tmp_path: Path) -> None:
    card = card_of(write_model(tmp_path / "m.gguf", ModelSpec(down_types=(QuantType.Q8_0, QuantType.F32))))
    small, large = card.expert_bytes(0), card.expert_bytes(1)
    assert small < large
    budget = WORKER_OVERHEAD_BYTES + 3 * large
    assert experts_for_budget(card, budget) == 3
    assert experts_for_budget(card, budget - 1) == 2
    assert experts_for_budget(card, WORKER_OVERHEAD_BYTES + 5 * small, layer=0) == 5
    assert experts_for_budget(card, 1 << 40, layer=0) == 6
    assert experts_for_budget(card, 1 << 40) == 18
    assert experts_for_budget(card, 0) == 0
    assert whole_layers_for_budget(card, WORKER_OVERHEAD_BYTES + 6 * (small + large)) == 2
    assert whole_layers_for_budget(card, WORKER_OVERHEAD_BYTES + 6 * small - 1) == 0
    with pytest.raises(ConfigError, match="budget of -1 bytes"):
        experts_for_budget(card, -1)
