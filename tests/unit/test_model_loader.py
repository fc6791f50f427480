"""Loading is strict: what is missing, left over, of another shape, or not run here is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from backbone.engine.model.architectures import ARCHITECTURES as ENGINE_ARCHITECTURES
from backbone.engine.model.architectures import read_config
from backbone.engine.model.model import Model
from backbone.engine.ops.torch_ops import TorchOps
from kvasir.errors import GGUFError, UnsupportedModelError
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.model_card import ENGINE_ARCHITECTURES as CARD_ARCHITECTURES
from tests.oracles.model_runs import run_chunks, torch_oracle
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.oracles.tiny_layout import ARCHITECTURES, Role, TinyShape, TinyTensor, tiny_metadata, tiny_tensors

SMALL = TinyShape(n_layer=2, d_model=32, n_head=2, n_kv_head=1, d_head=16, n_expert=4, n_used=2, d_ff=32)
Change = Callable[[list[TinyTensor]], list[TinyTensor]]


def load(path: Path) -> Model:
    with GGUFIndex.open(path) as index:
        return Model.load(index, TorchOps(), n_slot=1, n_ctx=16)


def write(path: Path, architecture: str, change: Change = list, **metadata: Any) -> Path:
    model = TinyModel(architecture, shape=SMALL, metadata=metadata, change_tensors=change)
    return write_tiny(path / "m.gguf", model)


def without(name: str) -> Change:
    return lambda tensors: [tensor for tensor in tensors if tensor.name != name]


def with_shape(name: str, *shape: int) -> Change:
    return lambda tensors: [replace(t, shape=shape) if t.name == name else t for t in tensors]


def with_extra(name: str) -> Change:
    return lambda tensors: [*tensors, TinyTensor(name, (32,), Role.PLAIN, 1.0)]


def read(architecture: str, **changes: Any) -> None:
    metadata = {f"{architecture}.{key}": value for key, value in (tiny_metadata(architecture, SMALL) | changes).items()}
    read_config({"general.architecture": architecture} | {k: v for k, v in metadata.items() if v is not None})


def test_the_card_and_the_engine_agree_about_architectures() -> None:
    assert set(ENGINE_ARCHITECTURES) == set(CARD_ARCHITECTURES) == set(ARCHITECTURES)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_tensor_of_every_architecture_is_needed(architecture: str, tmp_path: Path) -> None:
    """Leave out each tensor of a small model in turn, but those that are optional on purpose."""
    optional = {"output.weight"}
    if architecture == "glm4moe":
        optional |= {f"blk.{layer}.attn_{name}.bias" for layer in range(2) for name in "qkv"}
    for tensor in tiny_tensors(architecture, SMALL, is_fused=False, is_tied=False):
        path = write(tmp_path, architecture, without(tensor.name))
        if tensor.name in optional:
            load(path)
            continue
        # experts are checked together, and the error names their layer
        named = f"layer {tensor.name.split('.')[1]}" if "_exps." in tensor.name else tensor.name
        with pytest.raises((GGUFError, UnsupportedModelError), match=named):
            load(path)


@pytest.mark.parametrize(
    "name", ["blk.1.attn_sinks.weight", "blk.0.ffn_gate_exps.scale", "rope_freqs.weight", "blk.2.attn_norm.weight"]
)
def test_a_tensor_that_nobody_asks_for_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=name):
        load(write(tmp_path, "qwen3moe", with_extra(name)))


def test_expert_biases_are_refused_where_the_architecture_has_none(tmp_path: Path) -> None:
    def with_bias(tensors: list[TinyTensor]) -> list[TinyTensor]:
        return [*tensors, TinyTensor("blk.0.ffn_gate_exps.bias", (4, 32), Role.PLAIN, 1.0)]

    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.ffn_gate_exps\.bias"):
        load(write(tmp_path, "qwen3moe", with_bias))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_q.weight", (64, 32)),
        ("blk.1.attn_k_norm.weight", (8,)),
        ("blk.1.ffn_gate_inp.weight", (5, 32)),
        ("output.weight", (100, 32)),
        ("token_embd.weight", (288, 64)),
    ],
)
def test_a_tensor_of_another_shape_is_refused(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=name):
        load(write(tmp_path, "qwen3moe", with_shape(name, *shape)))


@pytest.mark.parametrize("architecture", ["glm4moe", "qwen35moe"])
def test_mtp_layers_are_left_alone(architecture: str, tmp_path: Path) -> None:
    """Their tensors may be anything, and the logits are those of the file without them."""
    tokens = list(range(12))
    plain = write_tiny(tmp_path / "plain.gguf", TinyModel(architecture, shape=SMALL))
    shape = replace(SMALL, n_mtp_layer=2)
    mtp = write_tiny(
        tmp_path / "mtp.gguf", TinyModel(architecture, shape=shape, change_tensors=with_extra("blk.3.nextn.new.weight"))
    )
    logits = []
    for path in (plain, mtp):
        with torch_oracle(path, TorchOps()) as (model, experts):
            assert model.config.n_layer == 2
            logits.append(run_chunks(model, experts, tokens, [12]))
    assert torch.equal(logits[0], logits[1])


def test_experts_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "qwen3moe")
    with GGUFIndex.open(path) as index:
        read_names: list[str] = []
        bytes_of = index.bytes_of

        def watched(name: str) -> npt.NDArray[np.uint8]:
            read_names.append(name)
            return bytes_of(name)

        monkeypatch.setattr(index, "bytes_of", watched)
        Model.load(index, TorchOps(), n_slot=1, n_ctx=16)
    assert read_names
    assert not [name for name in read_names if "_exps" in name]


@pytest.mark.parametrize("architecture", ["gpt2", "deepseek2", "", 5, None])
def test_unknown_architectures_are_refused_by_name(architecture: object) -> None:
    with pytest.raises((UnsupportedModelError, GGUFError), match=repr(architecture)):
        read_config({"general.architecture": architecture})


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [
        ("qwen3moe", "rope.scaling.type", "yarn"),
        ("qwen3moe", "rope.scaling.factor", 4.0),
        ("qwen3moe", "attention.sliding_window", 4096),
        ("qwen3moe", "some.new.fact", 1),
        ("olmoe", "attention.clamp_kqv", 8.0),
        ("llama", "attention.causal", False),
        ("llama", "expert_count", 0),
        ("qwen3moe", "expert_gating_func", 2),
        ("glm4moe", "expert_gating_func", 3),
        ("qwen3moe", "expert_weights_norm", False),
        ("olmoe", "expert_weights_norm", True),
        ("qwen3moe", "expert_group_count", 4),
        ("qwen3moe", "leading_dense_block_count", 1),
        ("qwen3moe", "expert_shared_count", 1),
        ("qwen3moe", "attention.head_count_kv", [1, 2]),
    ],
)
def test_values_that_are_not_run_are_refused_by_name(architecture: str, key: str, value: object) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{architecture}.{key}"):
        read(architecture, **{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.scaling.type", "none"),
        ("attention.sliding_window", 0),
        ("expert_weights_scale", 0.0),
        ("expert_gating_func", 1),
        ("expert_weights_norm", True),
        ("vocab_size", 288),
        ("attention.head_count_kv", [1, 1]),
    ],
)
def test_values_without_influence_are_accepted(key: str, value: object) -> None:
    read("qwen3moe", **{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", None),
        ("block_count", 0),
        ("block_count", 2**40),
        ("block_count", "two"),
        ("embedding_length", True),
        ("attention.layer_norm_rms_epsilon", None),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("rope.freq_base", float("inf")),
        ("rope.dimension_count", 15),
        ("rope.dimension_count", 32),
        ("attention.head_count", -2),
        ("attention.head_count_kv", 3),
        ("nextn_predict_layers", 2),
        ("expert_used_count", 5),
        ("expert_weights_norm", 1),
    ],
)
def test_metadata_that_makes_no_sense_is_refused(key: str, value: object) -> None:
    with pytest.raises(GGUFError):
        read("qwen3moe", **{key: value})


@pytest.mark.parametrize(("n_group", "n_used"), [(3, 1), (4, 5), (4, 1)])
def test_groups_that_do_not_fit_are_refused(n_group: int, n_used: int) -> None:
    """Four experts: groups must divide them, hold two at least, and be there."""
    with pytest.raises(GGUFError, match="4 experts in"):
        read("glm4moe", expert_group_count=n_group, expert_group_used_count=n_used)
