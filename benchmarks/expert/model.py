"""A model file of one MoE layer in the real shape, with weights that really are quantised, for `bench_expert`.

A few Gaussian matrices are quantised by ggml; every expert gets the blocks of one of them in an order of its own. So
the values are honest and no two experts share their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as QuantType

from tests.oracles.quantise import quantise

WEIGHT_SCALE = 0.03
N_MATRICES = 2  # quantised ones of each kind


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Sizes of the layer."""

    d_model: int = 3072
    d_ff: int = 1024
    n_expert: int = 64
    n_used: int = 8


QUICK = ExpertShape(d_model=512, d_ff=256, n_expert=16)


def write_expert_model(path: Path, shape: ExpertShape) -> None:
    """Write one layer of experts: gate and up in Q4_K, down in Q6_K."""
    rng = np.random.default_rng(0)
    d_model, d_ff = shape.d_model, shape.d_ff
    writer = gguf.GGUFWriter(str(path), "qwen3moe")
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(d_model)
    writer.add_expert_count(shape.n_expert)
    writer.add_expert_used_count(shape.n_used)
    writer.add_expert_feed_forward_length(d_ff)
    writer.add_head_count(8)
    writer.add_tensor("token_embd.weight", np.zeros((16, d_model), np.float32))
    for role, quant_type, n_out, n_in in (
        ("gate", QuantType.Q4_K, d_ff, d_model),
        ("up", QuantType.Q4_K, d_ff, d_model),
        ("down", QuantType.Q6_K, d_model, d_ff),
    ):
        stack = _stack(rng, quant_type, shape.n_expert, n_out, n_in)
        writer.add_tensor(f"blk.0.ffn_{role}_exps.weight", stack, raw_dtype=quant_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _stack(
    rng: np.random.Generator, quant_type: QuantType, n_expert: int, n_out: int, n_in: int
) -> npt.NDArray[np.uint8]:
    """Blocks [n_expert, n_out, row_bytes]."""
    values = rng.standard_normal((N_MATRICES, n_out, n_in), dtype=np.float32) * np.float32(WEIGHT_SCALE)
    matrices = quantise(values, quant_type)
    stack = np.empty((n_expert, *matrices.shape[1:]), np.uint8)
    for expert in range(n_expert):
        blocks = matrices[expert % N_MATRICES].reshape(-1, GGML_QUANT_SIZES[quant_type][1])
        stack[expert] = blocks[rng.permutation(len(blocks))].reshape(matrices.shape[1:])
    return stack
