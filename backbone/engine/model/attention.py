"""Softmax attention of one layer: projections, heads, the output gate.

It gets the normalised rows of a batch; keys and values go into the step's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from backbone.engine.model.batch import Step
from backbone.engine.model.kv_cache import Kept, SlotCache
from backbone.engine.model.loader import DenseTensors
from backbone.engine.ops.interface import HeadForm, KVLayer, Linear, Ops
from backbone.engine.ops.model_config import AttentionConfig, ModelConfig, QKNorm


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Implement `layer.Mixer`."""

    layer: int
    config: AttentionConfig
    ops: Ops
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    form: HeadForm

    @classmethod
    def load(cls, tensors: DenseTensors, layer: int, config: AttentionConfig, model: ModelConfig, ops: Ops) -> Self:
        """Load the layer's tensors."""
        d_query, d_key = config.n_head * config.d_head, config.n_kv_head * config.d_head
        d_value = config.n_kv_head * config.d_head_v
        has_norm = tensors.has("attn_q_norm.weight", config.qk_norm_presence)
        is_whole = config.qk_norm is QKNorm.WHOLE
        n_query_row = 2 * d_query if config.has_output_gate else d_query
        return cls(
            layer=layer,
            config=config,
            ops=ops,
            query=tensors.linear("attn_q", n_query_row, model.d_model, bias=config.qkv_bias),
            key=tensors.linear("attn_k", d_key, model.d_model, bias=config.qkv_bias),
            value=tensors.linear("attn_v", d_value, model.d_model, bias=config.qkv_bias),
            output=tensors.linear("attn_output", model.d_model, config.n_head * config.d_head_v),
            form=HeadForm(
                query_norm=tensors.vector("attn_q_norm.weight", d_query if is_whole else config.d_head)
                if has_norm
                else None,
                key_norm=tensors.vector("attn_k_norm.weight", d_key if is_whole else config.d_head)
                if has_norm
                else None,
                norm_eps=model.norm_eps,
                has_adjacent_pairs=config.rope.has_adjacent_pairs,
                scale=config.scale,
            ),
        )

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Return the mixer's output: x [T, d_model] -> [T, d_model]."""
        config, n_rows = self.config, x.shape[0]
        query, key, value = self.ops.linear(x, self.query, self.key, self.value)
        gate: Tensor | None = None
        if config.has_output_gate:
            both = query.view(n_rows, config.n_head, 2 * config.d_head)
            query, gate = both[..., : config.d_head].reshape(n_rows, -1), both[..., config.d_head :].contiguous()
        rope, cache = step.ropes[config.rope], self._cache(step)
        heads = self.ops.attend(query, key, value, self.form, rope, cache, step.segments)
        if gate is not None:
            heads = heads * self.ops.sigmoid(gate)
        return self.ops.linear(heads.view(n_rows, -1), self.output)[0]

    def remember(self, x: Tensor, step: Step) -> None:
        """Write only the keys and values of rows x [T, d_model] to the cache, without computing attention."""
        cache, form = self._cache(step), self.form
        key, value = self.ops.linear(x, self.key, self.value)
        heads = key.view(len(x), self.config.n_kv_head, self.config.d_head)
        if form.key_norm is not None:
            heads = self.ops.rms_norm(key.view(len(x), -1, form.key_norm.numel()), form.key_norm, form.norm_eps)
            heads = heads.view(len(x), self.config.n_kv_head, self.config.d_head)
        slots = torch.tensor([s.slot for s in step.segments for _ in range(s.n_rows)], device=x.device)
        places = torch.tensor([p for s in step.segments for p in range(s.position, s.position + s.n_rows)])
        places = places.to(x.device)
        rope = step.ropes[self.config.rope]
        cache.keys[slots, :, places] = rope.turned(heads, places, has_adjacent_pairs=form.has_adjacent_pairs)
        cache.values[slots, :, places] = value.view(len(x), self.config.n_kv_head, self.config.d_head_v)

    def _cache(self, step: Step) -> KVLayer:
        cache = step.cache.state(self.layer)
        if not isinstance(cache, KVLayer):
            raise TypeError(f"layer {self.layer} has no key-value cache")
        return cache

    def settle(self, cache: SlotCache, kept: Sequence[Kept]) -> None:
        """Do nothing: keys and values lie by position, and nothing reads beyond a sequence's end."""
