"""Small mixture-of-experts GGUF files for tests, written by gguf-py: the independent writer of the format.

`write_model` makes a whole model of a few hundred KiB in any of the layouts that Kvasir reads. `everything_read` is
the list of exceptions and the walk over a file that fuzz tests share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as QuantType

from kvasir.errors import GGUFError, SliceError, UnsupportedModelError
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slices import model_experts

CLEAR_ERRORS = (GGUFError, UnsupportedModelError, SliceError)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    architecture: str = "qwen3moe"
    name: str = "tiny"
    n_layer: int = 3
    n_mtp_layer: int = 0
    dense_layers: tuple[int, ...] = ()
    n_expert: int = 6
    n_used: int = 2
    d_model: int = 64
    d_ff: int = 32
    gate_type: QuantType = QuantType.Q8_0
    down_types: tuple[QuantType, ...] = (QuantType.Q8_0,)  # of layer 0, 1, …, then again from the first
    is_fused: bool = False
    has_bias: bool = False
    n_vocab: int = 40
    seed: int = 0
    alignment: int | None = None
    tensors_per_part: int = 0
    data_changed_in: str = ""  # name of a tensor that gets one other byte
    without: tuple[str, ...] = ()
    metadata_changes: dict[str, int] = field(default_factory=dict)
    extra_tensors: tuple[str, ...] = ()


def write_model(path: Path, spec: ModelSpec = ModelSpec()) -> Path:
    """Write the model and return the path of its first part."""
    writer = gguf.GGUFWriter(str(path), spec.architecture, split_max_tensors=spec.tensors_per_part)
    rng = np.random.default_rng(spec.seed)
    _add_metadata(writer, spec)

    def add(name: str, shape: tuple[int, ...], quant_type: QuantType = QuantType.F32) -> None:
        values = rng.standard_normal(shape, dtype=np.float32)
        stored: npt.NDArray[np.generic] = values if quant_type == QuantType.F32 else gguf.quantize(values, quant_type)
        if name == spec.data_changed_in:
            stored = stored.copy()
            stored.view(np.uint8).reshape(-1)[-1] ^= 1
        if name not in spec.without:
            writer.add_tensor(name, stored, raw_dtype=None if quant_type == QuantType.F32 else quant_type)

    add("token_embd.weight", (spec.n_vocab, spec.d_model), spec.gate_type)
    add("output_norm.weight", (spec.d_model,))
    for layer in range(spec.n_layer + spec.n_mtp_layer):
        _add_layer(add, spec, layer)
    for name in spec.extra_tensors:
        add(name, (4,))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else min(path.parent.glob(f"{path.stem}-*-of-*.gguf"))


def _add_metadata(writer: gguf.GGUFWriter, spec: ModelSpec) -> None:
    numbers = {
        "block_count": spec.n_layer + spec.n_mtp_layer,
        "embedding_length": spec.d_model,
        "expert_count": spec.n_expert,
        "expert_used_count": spec.n_used,
        "expert_feed_forward_length": spec.d_ff,
        "context_length": 512,
    }
    if spec.n_mtp_layer:
        numbers["nextn_predict_layers"] = spec.n_mtp_layer
    writer.add_string("general.name", spec.name)
    for key, value in (numbers | spec.metadata_changes).items():
        writer.add_uint32(f"{spec.architecture}.{key}", value)
    writer.add_float32(f"{spec.architecture}.rope.freq_base", 1e6)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_token_list([f"token {number} é" for number in range(spec.n_vocab)])
    writer.add_token_scores([float(number) for number in range(spec.n_vocab)])
    writer.add_token_types([1] * spec.n_vocab)
    if spec.alignment is not None:
        writer.add_custom_alignment(spec.alignment)


def _add_layer(add: Callable[..., None], spec: ModelSpec, layer: int) -> None:
    block = f"blk.{layer}."
    n_expert, d_model, d_ff = spec.n_expert, spec.d_model, spec.d_ff
    add(block + "attn_norm.weight", (d_model,))
    if layer in spec.dense_layers:
        add(block + "ffn_gate.weight", (d_ff, d_model), spec.gate_type)
        return
    down_type = spec.down_types[layer % len(spec.down_types)]
    add(block + "ffn_gate_inp.weight", (n_expert, d_model))
    add(block + "ffn_gate_shexp.weight", (d_ff, d_model), spec.gate_type)
    roles = {"gate_up": 2 * d_ff} if spec.is_fused else {"gate": d_ff, "up": d_ff}
    for role, n_out in roles.items():
        add(f"{block}ffn_{role}_exps.weight", (n_expert, n_out, d_model), spec.gate_type)
    add(block + "ffn_down_exps.weight", (n_expert, d_model, d_ff), down_type)
    if spec.has_bias:
        for role, n_out in (roles | {"down": d_model}).items():
            add(f"{block}ffn_{role}_exps.bias", (n_expert, n_out))


def read_everything(path: Path) -> None:
    """Read whatever can be read of a model: every metadata value, tensor, fact and expert."""
    with GGUFIndex.open(path) as index:
        for key in index.metadata:
            index.metadata[key]
        for name in index.tensors:
            index.bytes_of(name).sum()
        card = ModelCard.from_index(index)
        for layer in card.moe_layers:
            model_experts(index, card, layer)
