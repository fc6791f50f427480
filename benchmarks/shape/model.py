"""A model file of the 122B's block pattern, made on the spot: 6 GB in half a minute.

Its weights are real quant blocks of normal values: a small pool is quantised by ggml, and every tensor draws its
blocks from that at random, so no two experts share their bytes. The router is skewed as a trained one's is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as QuantType

from benchmarks.shape.layout import QUICK, RealShape, Recipe, recipes
from kvasir.errors import ConfigError
from tests.oracles.quantise import quantise

__all__ = ["QUICK", "RealShape", "model_bytes", "require_room", "write_real_shape", "write_sparse_shape"]

ARCHITECTURE = "qwen35moe"
ALIGNMENT = 32  # of GGUF tensors
POOL_BLOCKS = 1 << 13  # quantised blocks of each type
BLOCKS_AT_ONCE = 1 << 16
# log-normal lengths of the router's rows: the busiest tenth of the experts then gets about a third of the calls
ROUTER_SKEW = 0.35

Blocks = npt.NDArray[np.uint8]  # [n, block_bytes]


def write_real_shape(path: Path, shape: RealShape, *, seed: int = 0) -> Path:
    """Write the model at `path` and return it. The same seed and shape give the same bytes."""
    _write_header(path, shape)
    rng, pools = np.random.default_rng(seed), dict[tuple[QuantType, float], Blocks]()
    with path.open("ab") as file:
        file.write(bytes(-file.tell() % ALIGNMENT))
        for recipe in recipes(shape):
            for piece in _pieces(recipe, rng, pools):
                file.write(piece)
            file.write(bytes(-file.tell() % ALIGNMENT))
    return path


def write_sparse_shape(path: Path, shape: RealShape) -> Path:
    """Write the header and stretch the file to its true size: every weight is 0 and takes no room on the disk."""
    _write_header(path, shape)
    header_bytes = path.stat().st_size
    os.truncate(path, header_bytes + -header_bytes % ALIGNMENT + model_bytes(shape))
    return path


def require_room(folder: Path, n_bytes: int) -> None:
    """Raise ConfigError, with both numbers, where `folder` has no room for a file of `n_bytes`."""
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise ConfigError(f"{folder} has {free / 1e9:.1f} GB free; this needs {n_bytes / 1e9:.1f} GB (see --folder)")


def model_bytes(shape: RealShape) -> int:
    """Bytes of all tensors of the file, padding included."""
    return sum(n_bytes + -n_bytes % ALIGNMENT for n_bytes in map(_stored_bytes, recipes(shape)))


def _write_header(path: Path, shape: RealShape) -> None:
    writer = gguf.GGUFWriter(str(path), ARCHITECTURE)
    _add_metadata(writer, shape)
    _add_vocabulary(writer, shape.n_vocab)
    for recipe in recipes(shape):
        is_float = recipe.quant_type is QuantType.F32
        dtype = np.dtype(np.float32 if is_float else np.uint8)
        raw = None if is_float else recipe.quant_type
        writer.add_tensor_info(recipe.name, _stored_shape(recipe), dtype, _stored_bytes(recipe), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def _stored_shape(recipe: Recipe) -> tuple[int, ...]:
    if recipe.quant_type is QuantType.F32:
        return recipe.shape
    return gguf.quant_shape_to_byte_shape(recipe.shape, recipe.quant_type)


def _stored_bytes(recipe: Recipe) -> int:
    return int(np.prod(_stored_shape(recipe))) * (4 if recipe.quant_type is QuantType.F32 else 1)


def _pieces(recipe: Recipe, rng: np.random.Generator, pools: dict[tuple[QuantType, float], Blocks]) -> Iterator[bytes]:
    """The tensor's bytes, a few megabytes at a time."""
    if recipe.quant_type is QuantType.F32:
        values = rng.standard_normal(recipe.shape, np.float32) * np.float32(recipe.deviation) + np.float32(recipe.mean)
        if recipe.name.endswith("ffn_gate_inp.weight"):
            values *= rng.lognormal(0.0, ROUTER_SKEW, (recipe.shape[0], 1)).astype(np.float32)
        yield values.tobytes()
        return
    key = (recipe.quant_type, recipe.deviation)
    if key not in pools:
        pools[key] = _pool(rng, *key)
    n_blocks = int(np.prod(recipe.shape)) // GGML_QUANT_SIZES[recipe.quant_type][0]
    for first in range(0, n_blocks, BLOCKS_AT_ONCE):
        chosen = rng.integers(0, len(pools[key]), min(BLOCKS_AT_ONCE, n_blocks - first))
        yield pools[key][chosen].tobytes()


def _pool(rng: np.random.Generator, quant_type: QuantType, deviation: float) -> Blocks:
    block_weights, block_bytes = GGML_QUANT_SIZES[quant_type]
    values = rng.standard_normal((POOL_BLOCKS, block_weights), np.float32) * np.float32(deviation)
    return quantise(values, quant_type).reshape(POOL_BLOCKS, block_bytes)


def _add_metadata(writer: gguf.GGUFWriter, shape: RealShape) -> None:
    writer.add_name("random model of the 122B block pattern")
    writer.add_block_count(shape.n_layer)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.d_model)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_kv_head)
    writer.add_key_length(shape.d_head)
    writer.add_value_length(shape.d_head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(shape.n_rotated)
    writer.add_rope_dimension_sections(list(shape.rope_sections))
    writer.add_expert_count(shape.n_expert)
    writer.add_expert_used_count(shape.n_used)
    writer.add_expert_feed_forward_length(shape.d_ff)
    writer.add_expert_shared_feed_forward_length(shape.d_ff)
    writer.add_uint32(f"{ARCHITECTURE}.full_attention_interval", shape.interval)
    writer.add_ssm_conv_kernel(shape.conv_width)
    writer.add_ssm_state_size(shape.d_state)
    writer.add_ssm_group_count(shape.n_k_head)
    writer.add_ssm_time_step_rank(shape.n_v_head)
    writer.add_ssm_inner_size(shape.d_value)


def _add_vocabulary(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """Byte-level letters, two specials, two words and padding: the benchmarks give token ids and hardly any text."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    tokens = [letters[byte] for byte in range(256)] + ["<|endoftext|>", "<|im_end|>", "he", "ll"]
    types = [1] * 256 + [3] * 2 + [1] * 2
    n_padding = n_vocab - len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(tokens + [f"[PAD{n}]" for n in range(n_padding)])
    writer.add_token_types(types + [5] * n_padding)
    writer.add_token_merges(["h e", "l l"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_pad_token_id(256)
    writer.add_add_bos_token(False)
