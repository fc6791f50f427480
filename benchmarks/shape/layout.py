"""Which tensors the 122B model's block pattern has, in which types, and how wide: the recipe of `shape.model`.

Three layers with linear attention (Gated DeltaNet) and one with full attention, each with 256 routed experts and a
shared one. The types are those of a Q4_K_M file, the sizes published facts of Qwen3.5-122B-A10B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gguf import GGMLQuantizationType as QuantType

Q4, Q5, Q6, Q8, F32 = QuantType.Q4_K, QuantType.Q5_K, QuantType.Q6_K, QuantType.Q8_0, QuantType.F32


@dataclass(frozen=True, slots=True)
class RealShape:
    """Sizes of the model; the defaults are the 122B's but for the number of layers and the vocabulary."""

    n_layer: int = 4
    interval: int = 4  # every fourth layer has full attention
    d_model: int = 3072
    n_head: int = 32
    n_kv_head: int = 2
    d_head: int = 256
    n_rotated: int = 64
    rope_sections: tuple[int, int, int, int] = (11, 11, 10, 0)
    n_k_head: int = 16  # of linear attention
    n_v_head: int = 64
    d_state: int = 128
    conv_width: int = 4
    n_expert: int = 256
    n_used: int = 8
    d_ff: int = 1024
    n_vocab: int = 4096
    n_ctx: int = 32_768

    @property
    def d_value(self) -> int:
        """Width of all value heads of linear attention."""
        return self.n_v_head * self.d_state

    @property
    def d_conv(self) -> int:
        """Width of what the convolution reads: queries, keys and values."""
        return 2 * self.n_k_head * self.d_state + self.d_value

    def has_full_attention(self, layer: int) -> bool:
        """Return whether a layer's mixer is full attention."""
        return (layer + 1) % self.interval == 0


QUICK = RealShape(
    n_layer=2,
    interval=2,
    d_model=512,
    n_head=4,
    d_head=64,
    n_rotated=16,
    rope_sections=(3, 3, 2, 0),
    n_k_head=2,
    n_v_head=4,
    d_state=64,
    n_expert=16,
    n_used=4,
    d_ff=256,
    n_vocab=512,
    n_ctx=1024,
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One tensor: normal values of a deviation around a mean, outermost dimension first."""

    name: str
    shape: tuple[int, ...]
    quant_type: QuantType
    deviation: float
    mean: float = 0.0


def recipes(shape: RealShape) -> Iterator[Recipe]:
    """Every tensor in the order of the file."""
    yield Recipe("token_embd.weight", (shape.n_vocab, shape.d_model), Q4, 1.0)
    yield _matrix("output.weight", shape.n_vocab, shape.d_model, Q6)
    yield _norm("output_norm.weight", shape.d_model)
    for layer in range(shape.n_layer):
        block = f"blk.{layer}."
        yield _norm(block + "attn_norm.weight", shape.d_model)
        yield from _attention(block, shape) if shape.has_full_attention(layer) else _linear_attention(block, shape)
        yield _norm(block + "post_attention_norm.weight", shape.d_model)
        yield from _experts(block, shape, Q6 if layer % 2 == 0 else Q4)


def _matrix(name: str, n_out: int, n_in: int, quant_type: QuantType) -> Recipe:
    return Recipe(name, (n_out, n_in), quant_type, n_in**-0.5)


def _norm(name: str, width: int) -> Recipe:
    return Recipe(name, (width,), F32, 0.1, 1.0)


def _attention(block: str, shape: RealShape) -> Iterator[Recipe]:
    d_query, d_key = shape.n_head * shape.d_head, shape.n_kv_head * shape.d_head
    yield _matrix(block + "attn_q.weight", 2 * d_query, shape.d_model, Q4)  # each head's query and its gate
    yield _matrix(block + "attn_k.weight", d_key, shape.d_model, Q4)
    yield _matrix(block + "attn_v.weight", d_key, shape.d_model, Q6)
    yield _matrix(block + "attn_output.weight", shape.d_model, d_query, Q4)
    yield _norm(block + "attn_q_norm.weight", shape.d_head)
    yield _norm(block + "attn_k_norm.weight", shape.d_head)


def _linear_attention(block: str, shape: RealShape) -> Iterator[Recipe]:
    yield _matrix(block + "attn_qkv.weight", shape.d_conv, shape.d_model, Q5)
    yield _matrix(block + "attn_gate.weight", shape.d_value, shape.d_model, Q4)
    yield Recipe(block + "ssm_conv1d.weight", (shape.d_conv, shape.conv_width), F32, 0.5)
    yield Recipe(block + "ssm_a", (shape.n_v_head,), F32, 0.2, -1.0)
    yield Recipe(block + "ssm_dt.bias", (shape.n_v_head,), F32, 0.5)
    yield _matrix(block + "ssm_alpha.weight", shape.n_v_head, shape.d_model, Q8)
    yield _matrix(block + "ssm_beta.weight", shape.n_v_head, shape.d_model, Q8)
    yield _norm(block + "ssm_norm.weight", shape.d_state)
    yield _matrix(block + "ssm_out.weight", shape.d_model, shape.d_value, Q4)


def _experts(block: str, shape: RealShape, down_type: QuantType) -> Iterator[Recipe]:
    n, d_model, d_ff = shape.n_expert, shape.d_model, shape.d_ff
    yield Recipe(block + "ffn_gate_inp.weight", (n, d_model), F32, 3 * d_model**-0.5)
    yield Recipe(block + "ffn_gate_exps.weight", (n, d_ff, d_model), Q4, d_model**-0.5)
    yield Recipe(block + "ffn_up_exps.weight", (n, d_ff, d_model), Q4, d_model**-0.5)
    yield Recipe(block + "ffn_down_exps.weight", (n, d_model, d_ff), down_type, d_ff**-0.5)
    yield Recipe(block + "ffn_gate_inp_shexp.weight", (d_model,), F32, d_model**-0.5)
    yield _matrix(block + "ffn_gate_shexp.weight", d_ff, d_model, Q4)
    yield _matrix(block + "ffn_up_shexp.weight", d_ff, d_model, Q4)
    yield _matrix(block + "ffn_down_shexp.weight", d_model, d_ff, down_type)
