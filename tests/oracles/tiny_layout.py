"""Which tensors and metadata a tiny random model of each architecture has: the recipe that `tiny_gguf` writes.

Written from the GGUF naming alone and independent of the engine's own tables, so that a mistake there shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

ARCHITECTURES = ("qwen3moe", "qwen35moe", "qwen2moe", "olmoe", "glm4moe", "llama")

Value = int | float | bool | list[int]


class Role(Enum):
    """What a tensor is for; a quantisation gives each role its type."""

    PLAIN = "plain"  # norms, biases, routers, convolutions: always F32
    DENSE = "dense"
    OUTPUT = "output"  # head, embedding and attention values: the finer type of a mixed file
    EXPERT = "expert"  # gate and up of routed experts
    DOWN = "down"  # down of routed experts


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Dimensions of a tiny model; the defaults fit every K-quant."""

    n_layer: int = 4
    d_model: int = 256
    n_head: int = 4
    n_kv_head: int = 2
    d_head: int = 64
    n_expert: int = 16
    n_used: int = 4
    d_ff: int = 256
    n_vocab: int = 288
    n_ctx: int = 512
    n_mtp_layer: int = 0
    n_expert_group: int = 1  # glm4moe
    n_expert_group_used: int = 1  # glm4moe


@dataclass(frozen=True, slots=True)
class TinyTensor:
    """One tensor: random normal of the given deviation around `mean`."""

    name: str
    shape: tuple[int, ...]  # outermost first
    role: Role
    deviation: float
    mean: float = 0.0


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """Dimensions of the recurrent layers of the tiny qwen35moe."""

    n_k_head: int = 2
    n_v_head: int = 4
    d_state: int = 64
    conv_width: int = 4
    interval: int = 2  # every second layer is full attention

    @property
    def d_value(self) -> int:
        return self.n_v_head * self.d_state

    @property
    def d_conv(self) -> int:
        return 2 * self.n_k_head * self.d_state + self.d_value


DELTA = GatedDelta()


def tiny_tensors(architecture: str, shape: TinyShape, *, is_fused: bool, is_tied: bool) -> Iterator[TinyTensor]:
    """Every tensor of the model, MTP layers included, in file order."""
    deviation = shape.d_model**-0.5 if is_tied else 1.0  # as a head it must give logits of about 1
    yield TinyTensor("token_embd.weight", (shape.n_vocab, shape.d_model), Role.OUTPUT, deviation)
    if not is_tied:
        yield _matrix("output.weight", shape.n_vocab, shape.d_model, Role.OUTPUT)
    yield _norm("output_norm.weight", shape.d_model)
    for layer in range(shape.n_layer + shape.n_mtp_layer):
        prefix = f"blk.{layer}."
        is_mtp = layer >= shape.n_layer
        yield _norm(prefix + "attn_norm.weight", shape.d_model)
        if architecture == "qwen35moe" and (layer + 1) % DELTA.interval and not is_mtp:
            yield from _gated_delta(prefix, shape)
        else:
            yield from _attention(prefix, architecture, shape)
        norm = "post_attention_norm" if architecture in ("qwen35moe", "glm4moe") else "ffn_norm"
        yield _norm(prefix + norm + ".weight", shape.d_model)
        if architecture == "glm4moe" and layer == 0:
            yield from _gated_ffn(prefix, "", 2 * shape.d_ff, shape)
        else:
            yield from _moe(prefix, architecture, shape, is_fused)
        if is_mtp:
            yield from _mtp(prefix, shape)


def tiny_metadata(architecture: str, shape: TinyShape) -> dict[str, Value]:
    """The architecture's metadata, keys without their prefix."""
    dense_ff = shape.d_ff if architecture in ("olmoe", "llama") else 2 * shape.d_ff
    metadata: dict[str, Value] = {
        "context_length": shape.n_ctx,
        "embedding_length": shape.d_model,
        "block_count": shape.n_layer + shape.n_mtp_layer,
        "feed_forward_length": dense_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": _n_kv_head(architecture, shape),
        "attention.key_length": shape.d_head,
        "attention.value_length": shape.d_head,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
        "expert_count": shape.n_expert,
        "expert_used_count": shape.n_used,
        "expert_feed_forward_length": shape.d_ff,
    }
    if shape.n_mtp_layer:
        metadata["nextn_predict_layers"] = shape.n_mtp_layer
    return metadata | _special_metadata(architecture, shape)


def _special_metadata(architecture: str, shape: TinyShape) -> dict[str, Value]:
    if architecture == "llama":
        return {"rope.dimension_count": shape.d_head}
    if architecture == "qwen2moe":
        return {"expert_shared_feed_forward_length": shape.d_ff}
    if architecture == "glm4moe":
        groups: dict[str, Value] = {
            "expert_group_count": shape.n_expert_group,
            "expert_group_used_count": shape.n_expert_group_used,
        }
        return {
            "leading_dense_block_count": 1,
            "expert_shared_count": 1,
            "expert_gating_func": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
            "rope.dimension_count": shape.d_head // 2,
            **(groups if shape.n_expert_group > 1 else {}),
        }
    if architecture == "qwen35moe":
        return {
            "expert_shared_feed_forward_length": shape.d_ff,
            "full_attention_interval": DELTA.interval,
            "ssm.conv_kernel": DELTA.conv_width,
            "ssm.state_size": DELTA.d_state,
            "ssm.group_count": DELTA.n_k_head,
            "ssm.time_step_rank": DELTA.n_v_head,
            "ssm.inner_size": DELTA.d_value,
            "rope.dimension_count": shape.d_head // 4,
            "rope.dimension_sections": [3, 3, 2, 0],
        }
    return {}


def _n_kv_head(architecture: str, shape: TinyShape) -> int:
    return shape.n_head if architecture == "olmoe" else shape.n_kv_head  # llama.cpp's olmoe has no grouped heads


def _matrix(name: str, n_out: int, n_in: int, role: Role = Role.DENSE) -> TinyTensor:
    return TinyTensor(name, (n_out, n_in), role, n_in**-0.5)


def _norm(name: str, n: int) -> TinyTensor:
    return TinyTensor(name, (n,), Role.PLAIN, 0.1, 1.0)


def _attention(prefix: str, architecture: str, shape: TinyShape) -> Iterator[TinyTensor]:
    d_q, d_kv = shape.n_head * shape.d_head, _n_kv_head(architecture, shape) * shape.d_head
    yield _matrix(prefix + "attn_q.weight", 2 * d_q if architecture == "qwen35moe" else d_q, shape.d_model)
    yield _matrix(prefix + "attn_k.weight", d_kv, shape.d_model)
    yield _matrix(prefix + "attn_v.weight", d_kv, shape.d_model, Role.OUTPUT)
    yield _matrix(prefix + "attn_output.weight", shape.d_model, d_q)
    if architecture in ("qwen3moe", "qwen35moe"):
        yield _norm(prefix + "attn_q_norm.weight", shape.d_head)
        yield _norm(prefix + "attn_k_norm.weight", shape.d_head)
    if architecture == "olmoe":
        yield _norm(prefix + "attn_q_norm.weight", d_q)
        yield _norm(prefix + "attn_k_norm.weight", d_kv)
    if architecture in ("qwen2moe", "glm4moe"):
        for name, width in (("q", d_q), ("k", d_kv), ("v", d_kv)):
            yield TinyTensor(f"{prefix}attn_{name}.bias", (width,), Role.PLAIN, 0.1)


def _gated_delta(prefix: str, shape: TinyShape) -> Iterator[TinyTensor]:
    yield _matrix(prefix + "attn_qkv.weight", DELTA.d_conv, shape.d_model)
    yield _matrix(prefix + "attn_gate.weight", DELTA.d_value, shape.d_model)
    yield TinyTensor(prefix + "ssm_conv1d.weight", (DELTA.d_conv, DELTA.conv_width), Role.PLAIN, 0.5)
    yield TinyTensor(prefix + "ssm_a", (DELTA.n_v_head,), Role.PLAIN, 0.2, -1.0)
    yield TinyTensor(prefix + "ssm_dt.bias", (DELTA.n_v_head,), Role.PLAIN, 0.5)
    yield _matrix(prefix + "ssm_alpha.weight", DELTA.n_v_head, shape.d_model)
    yield _matrix(prefix + "ssm_beta.weight", DELTA.n_v_head, shape.d_model)
    yield _norm(prefix + "ssm_norm.weight", DELTA.d_state)
    yield _matrix(prefix + "ssm_out.weight", shape.d_model, DELTA.d_value)


def _gated_ffn(prefix: str, suffix: str, d_ff: int, shape: TinyShape) -> Iterator[TinyTensor]:
    yield _matrix(f"{prefix}ffn_gate{suffix}.weight", d_ff, shape.d_model)
    yield _matrix(f"{prefix}ffn_up{suffix}.weight", d_ff, shape.d_model)
    yield _matrix(f"{prefix}ffn_down{suffix}.weight", shape.d_model, d_ff)


def _moe(prefix: str, architecture: str, shape: TinyShape, is_fused: bool) -> Iterator[TinyTensor]:
    n, d_model, d_ff = shape.n_expert, shape.d_model, shape.d_ff
    if architecture == "glm4moe":
        yield TinyTensor(prefix + "exp_probs_b.bias", (n,), Role.PLAIN, 0.3)
    # a wide spread of router logits keeps near-ties, which rounding could flip, rare
    yield TinyTensor(prefix + "ffn_gate_inp.weight", (n, d_model), Role.PLAIN, 3 * d_model**-0.5)
    if is_fused:
        yield TinyTensor(prefix + "ffn_gate_up_exps.weight", (n, 2 * d_ff, d_model), Role.EXPERT, d_model**-0.5)
    else:
        yield TinyTensor(prefix + "ffn_gate_exps.weight", (n, d_ff, d_model), Role.EXPERT, d_model**-0.5)
        yield TinyTensor(prefix + "ffn_up_exps.weight", (n, d_ff, d_model), Role.EXPERT, d_model**-0.5)
    yield TinyTensor(prefix + "ffn_down_exps.weight", (n, d_model, d_ff), Role.DOWN, d_ff**-0.5)
    if architecture in ("qwen35moe", "qwen2moe"):
        yield TinyTensor(prefix + "ffn_gate_inp_shexp.weight", (d_model,), Role.PLAIN, d_model**-0.5)
    if architecture in ("qwen35moe", "qwen2moe", "glm4moe"):
        yield from _gated_ffn(prefix, "_shexp", d_ff, shape)


def _mtp(prefix: str, shape: TinyShape) -> Iterator[TinyTensor]:
    yield _matrix(prefix + "nextn.eh_proj.weight", shape.d_model, 2 * shape.d_model)
    yield _norm(prefix + "nextn.enorm.weight", shape.d_model)
    yield _norm(prefix + "nextn.hnorm.weight", shape.d_model)
    yield _norm(prefix + "nextn.shared_head_norm.weight", shape.d_model)
