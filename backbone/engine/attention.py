"""Softmax attention of one layer: projections, head norms, rotation, the cache, the output gate.

The model calls it with the normalised rows of a batch; keys and values go into the step's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from backbone.engine.loader import DenseTensors
from backbone.engine.model_config import AttentionConfig, ModelConfig, QKNorm
from backbone.engine.ops import KVLayer, Linear, Ops
from backbone.engine.step import Step


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Implements `mixers.Mixer`."""

    layer: int
    config: AttentionConfig
    norm_eps: float
    ops: Ops
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    query_norm: Tensor | None  # [d_head], or [n_head * d_head] when the norm is over the whole row
    key_norm: Tensor | None

    @classmethod
    def load(cls, tensors: DenseTensors, layer: int, config: AttentionConfig, model: ModelConfig, ops: Ops) -> Self:
        """Take the layer's tensors."""
        d_query, d_key = config.n_head * config.d_head, config.n_kv_head * config.d_head
        d_value = config.n_kv_head * config.d_head_v
        has_norm = tensors.has("attn_q_norm.weight", config.qk_norm_presence)
        is_whole = config.qk_norm is QKNorm.WHOLE
        n_query_row = 2 * d_query if config.has_output_gate else d_query
        return cls(
            layer=layer,
            config=config,
            norm_eps=model.norm_eps,
            ops=ops,
            query=tensors.linear("attn_q", n_query_row, model.d_model, bias=config.qkv_bias),
            key=tensors.linear("attn_k", d_key, model.d_model, bias=config.qkv_bias),
            value=tensors.linear("attn_v", d_value, model.d_model, bias=config.qkv_bias),
            output=tensors.linear("attn_output", model.d_model, config.n_head * config.d_head_v),
            query_norm=tensors.vector("attn_q_norm.weight", d_query if is_whole else config.d_head)
            if has_norm
            else None,
            key_norm=tensors.vector("attn_k_norm.weight", d_key if is_whole else config.d_head) if has_norm else None,
        )

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [T, d_model] -> [T, d_model]."""
        config, n_rows = self.config, x.shape[0]
        query, key, value = self.ops.linear(x, self.query, self.key, self.value)
        gate: Tensor | None = None
        if config.has_output_gate:
            both = query.view(n_rows, config.n_head, 2 * config.d_head)
            query, gate = both[..., : config.d_head].contiguous(), both[..., config.d_head :].contiguous()
        query = self._normed(query, self.query_norm, config.n_head)  # [T, n_head, d_head]
        key = self._normed(key, self.key_norm, config.n_kv_head)  # [T, n_kv_head, d_head]
        cos, sin = step.rotations[config.rope]
        query = self.ops.rope(query, cos, sin, adjacent_pairs=config.rope.has_adjacent_pairs)
        key = self.ops.rope(key, cos, sin, adjacent_pairs=config.rope.has_adjacent_pairs)
        cache = step.cache.state(self.layer)
        if not isinstance(cache, KVLayer):
            raise TypeError(f"layer {self.layer} has no key-value cache")
        cache.keys[step.slots, step.positions] = key
        cache.values[step.slots, step.positions] = value.view(n_rows, config.n_kv_head, config.d_head_v)
        heads = self.ops.attention(query, cache, step.segments, config.scale)  # [T, n_head, d_head_v]
        if gate is not None:
            heads = heads * self.ops.sigmoid(gate)
        return self.ops.linear(heads.reshape(n_rows, -1), self.output)[0]

    def _normed(self, x: Tensor, weight: Tensor | None, n_head: int) -> Tensor:
        """Heads [T, n_head, d_head] of rows, normalised over the whole row or within each head."""
        if weight is not None and self.config.qk_norm is QKNorm.WHOLE:
            x = self.ops.rms_norm(x, weight, self.norm_eps)
        x = x.view(x.shape[0], n_head, self.config.d_head)
        if weight is not None and self.config.qk_norm is QKNorm.PER_HEAD:
            x = self.ops.rms_norm(x, weight, self.norm_eps)
        return x
