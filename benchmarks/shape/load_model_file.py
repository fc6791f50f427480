"""A model file of the 122B shape for `bench_load`: true size, true header, real bytes only where they are read.

gguf-py writes the header (qwen35moe, 248,320 tokens and their merges); the data section is a hole in a sparse file, but
for the experts that the benchmark cuts: those get random quant blocks with sensible scales.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as QuantType

from kvasir.experts import ExpertRange
from kvasir.gguf.index import GGUFIndex

ARCHITECTURE = "qwen35moe"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of the model. Every fourth layer has full attention, the others a Gated DeltaNet."""

    n_layer: int = 48
    n_mtp_layer: int = 1
    n_expert: int = 256
    n_used: int = 8
    d_model: int = 3072
    d_ff: int = 1024
    n_vocab: int = 248_320


QUICK = ModelShape(n_layer=4, n_expert=64, d_model=512, d_ff=256, n_vocab=4_000)


def write_sparse_model(path: Path, shape: ModelShape) -> None:
    """Write the header and stretch the file to its true size; nothing of the data section is stored."""
    writer = gguf.GGUFWriter(str(path), ARCHITECTURE)
    _add_metadata(writer, shape)
    _add_tokens(writer, shape.n_vocab)
    n_bytes = 0
    for name, dims, quant_type in _tensors(shape):
        stored_dims = gguf.quant_shape_to_byte_shape(dims, quant_type)
        tensor_bytes = int(np.prod(stored_dims))
        writer.add_tensor_info(name, stored_dims, np.dtype(np.uint8), tensor_bytes, raw_dtype=quant_type)
        n_bytes += tensor_bytes + -tensor_bytes % 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    header_bytes = path.stat().st_size
    os.truncate(path, header_bytes + -header_bytes % 32 + n_bytes)


def fill_experts(path: Path, ranges: tuple[ExpertRange, ...], n_expert: int) -> None:
    """Write random quant blocks into these experts."""
    rng = np.random.default_rng(0)
    with GGUFIndex.open(path) as index:
        tensors = [
            (index.tensors[f"blk.{item.layer}.ffn_{role}_exps.weight"], item)
            for item in ranges
            for role in ("gate", "up", "down")
        ]
    with path.open("r+b") as file:
        for info, item in tensors:
            expert_bytes = info.n_bytes // n_expert
            for expert in range(item.start, item.stop):
                file.seek(info.offset + expert * expert_bytes)
                file.write(_random_blocks(rng, info.quant_type, expert_bytes).tobytes())


def _random_blocks(rng: np.random.Generator, quant_type: QuantType, n_bytes: int) -> npt.NDArray[np.uint8]:
    blocks = rng.integers(
        0, 256, (n_bytes // GGML_QUANT_SIZES[quant_type][1], GGML_QUANT_SIZES[quant_type][1]), np.uint8
    )
    scale = np.array([1e-3], np.float16).view(np.uint8)
    if quant_type is QuantType.Q6_K:
        blocks[:, -2:] = scale
    else:  # Q4_K: the scale, then the scale of the minimum
        blocks[:, 0:2] = scale
        blocks[:, 2:4] = scale
    return blocks


def _add_metadata(writer: gguf.GGUFWriter, shape: ModelShape) -> None:
    writer.add_name("sparse model of the 122B shape")
    writer.add_block_count(shape.n_layer + shape.n_mtp_layer)
    writer.add_uint32(f"{ARCHITECTURE}.nextn_predict_layers", shape.n_mtp_layer)
    writer.add_context_length(262_144)
    writer.add_embedding_length(shape.d_model)
    writer.add_expert_count(shape.n_expert)
    writer.add_expert_used_count(shape.n_used)
    writer.add_expert_feed_forward_length(shape.d_ff)
    writer.add_expert_shared_feed_forward_length(shape.d_ff)


def _add_tokens(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    rng = np.random.default_rng(0)
    letters = rng.integers(ord("a"), ord("z") + 1, (n_vocab, 12), np.uint8)
    lengths = rng.integers(2, 13, n_vocab)
    tokens = [f"{bytes(row[:length]).decode()}{number:x}" for number, (row, length) in enumerate(zip(letters, lengths))]  # noqa: B905 (equally long)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * n_vocab)
    writer.add_token_merges([f"{token[:-1]} {token[-1]}" for token in tokens])


def _tensors(shape: ModelShape) -> list[tuple[str, tuple[int, ...], QuantType]]:
    d_model, q8 = shape.d_model, QuantType.Q8_0
    tensors: list[tuple[str, tuple[int, ...], QuantType]] = [
        ("token_embd.weight", (shape.n_vocab, d_model), QuantType.Q4_K),
        ("output.weight", (shape.n_vocab, d_model), QuantType.Q6_K),
        ("output_norm.weight", (d_model,), QuantType.F32),
    ]
    for layer in range(shape.n_layer + shape.n_mtp_layer):
        block = f"blk.{layer}."
        tensors += [
            (block + "attn_norm.weight", (d_model,), QuantType.F32),
            (block + "post_attention_norm.weight", (d_model,), QuantType.F32),
        ]
        if layer % 4 == 3:
            dims = {"attn_q": 16_384, "attn_k": 512, "attn_v": 512}
            tensors.append((block + "attn_output.weight", (d_model, 8192), q8))
        else:
            dims = {"attn_qkv": 12_288, "attn_gate": 8192, "ssm_alpha": 64, "ssm_beta": 64}
            tensors.append((block + "ssm_out.weight", (d_model, 8192), q8))
            tensors.append((block + "ssm_conv1d.weight", (12_288, 4), QuantType.F32))
        tensors += [(f"{block}{name}.weight", (n_out, d_model), q8) for name, n_out in dims.items()]
        tensors += _ffn_tensors(block, shape, QuantType.Q6_K if layer % 2 == 0 else QuantType.Q4_K)
    return tensors


def _ffn_tensors(block: str, shape: ModelShape, down_type: QuantType) -> list[tuple[str, tuple[int, ...], QuantType]]:
    n_expert, d_model, d_ff = shape.n_expert, shape.d_model, shape.d_ff
    return [
        (block + "ffn_gate_inp.weight", (n_expert, d_model), QuantType.F32),
        (block + "ffn_gate_inp_shexp.weight", (d_model,), QuantType.F32),
        (block + "ffn_gate_shexp.weight", (d_ff, d_model), QuantType.Q8_0),
        (block + "ffn_up_shexp.weight", (d_ff, d_model), QuantType.Q8_0),
        (block + "ffn_down_shexp.weight", (d_model, d_ff), QuantType.Q8_0),
        (block + "ffn_gate_exps.weight", (n_expert, d_ff, d_model), QuantType.Q4_K),
        (block + "ffn_up_exps.weight", (n_expert, d_ff, d_model), QuantType.Q4_K),
        (block + "ffn_down_exps.weight", (n_expert, d_model, d_ff), down_type),
    ]
