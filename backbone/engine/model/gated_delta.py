"""A recurrent layer by the gated delta rule (Qwen3-Next, Qwen3.5), in GGUF's layout.

It stands in place of attention. Its state has a fixed size per sequence; value heads are stored tiled, so value head h
reads key head h % n_k_head. A tentative segment runs on a copy of its state and keeps what the state needs of its rows;
`settle` then runs the kept rows on the state itself, by the same steps, to the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from backbone.engine.model.batch import Step
from backbone.engine.model.kv_cache import DeltaLayer, DeltaRows, Kept, SlotCache
from backbone.engine.model.loader import DenseTensors
from backbone.engine.ops.interface import Linear, Ops, Segment
from backbone.engine.ops.model_config import GatedDeltaConfig, ModelConfig

_L2_EPS = 1e-6  # fixed in the reference, independent of the model's norms


@dataclass(frozen=True, slots=True, eq=False)
class GatedDelta:
    """Implement `layer.Mixer`."""

    layer: int
    config: GatedDeltaConfig
    norm_eps: float
    ops: Ops
    conv_inputs: Linear  # queries, keys and values
    output_gate: Linear
    alpha: Linear  # -> decay
    beta: Linear
    conv: Tensor  # [n_conv_channel, conv_width]
    decay_rate: Tensor  # [n_v_head], negative
    decay_bias: Tensor  # [n_v_head]
    norm: Tensor  # [d_v]
    output: Linear

    @classmethod
    def load(cls, tensors: DenseTensors, layer: int, config: GatedDeltaConfig, model: ModelConfig, ops: Ops) -> Self:
        """Load the layer's tensors."""
        return cls(
            layer=layer,
            config=config,
            norm_eps=model.norm_eps,
            ops=ops,
            conv_inputs=tensors.linear("attn_qkv", config.n_conv_channel, model.d_model),
            output_gate=tensors.linear("attn_gate", config.d_value, model.d_model),
            alpha=tensors.linear("ssm_alpha", config.n_v_head, model.d_model),
            beta=tensors.linear("ssm_beta", config.n_v_head, model.d_model),
            conv=tensors.vector("ssm_conv1d.weight", config.n_conv_channel, config.conv_width),
            decay_rate=tensors.vector("ssm_a", config.n_v_head),
            decay_bias=tensors.vector("ssm_dt.bias", config.n_v_head),
            norm=tensors.vector("ssm_norm.weight", config.d_v),
            output=tensors.linear("ssm_out", model.d_model, config.d_value),
        )

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Return the mixer's output: x [T, d_model] -> [T, d_model]."""
        ops = self.ops
        mixed, gate, alpha, beta = ops.linear(x, self.conv_inputs, self.output_gate, self.alpha, self.beta)
        heads = self._heads(DeltaRows(mixed, alpha, beta), step)
        heads = ops.rms_norm(heads, self.norm, self.norm_eps)
        gated = ops.silu_mul(gate, heads.reshape(x.shape[0], self.config.d_value))
        return ops.linear(gated, self.output)[0]

    def settle(self, cache: SlotCache, kept: Sequence[Kept]) -> None:
        """Run the kept rows on the state, which the forward left unchanged."""
        parts = [(slot, cache.delta_rows(slot, self.layer).part(0, n_rows)) for slot, n_rows in kept if n_rows]
        if not parts:
            return
        segments, first_row = [], 0
        for slot, rows in parts:
            segments.append(Segment(slot, first_row, len(rows.mixed), cache.length(slot)))
            first_row += len(rows.mixed)
        columns = zip(*(rows for _, rows in parts), strict=True)
        self._advance(DeltaRows(*map(torch.cat, columns)), self._state(cache), segments)

    def _state(self, cache: SlotCache) -> DeltaLayer:
        state = cache.state(self.layer)
        if not isinstance(state, DeltaLayer):
            raise TypeError(f"layer {self.layer} has no recurrent state")
        return state

    def _heads(self, rows: DeltaRows, step: Step) -> Tensor:
        """Return the heads [T, n_v_head, d_v]. Firm segments advance their state, tentative ones a copy."""
        state, n_firm = self._state(step.cache), len(step.segments) - step.n_tentative
        firm, tentative = step.segments[:n_firm], step.segments[n_firm:]
        if not tentative:
            return self._advance(rows, state, firm)
        split, n_rows = tentative[0].first_row, len(rows.mixed)
        copied = step.cache.delta_copy(self.layer, [segment.slot for segment in tentative])
        own = [Segment(n, s.first_row - split, s.n_rows, s.position) for n, s in enumerate(tentative)]
        heads = self._advance(rows.part(split, n_rows), copied, own)
        for slot, first, n, _ in tentative:
            step.cache.put_delta_rows(slot, self.layer, rows.part(first, first + n).copy())
        return torch.cat([self._advance(rows.part(0, split), state, firm), heads]) if firm else heads

    def _advance(self, rows: DeltaRows, state: DeltaLayer, segments: Sequence[Segment]) -> Tensor:
        """Advance the state by these rows and return their heads [n, n_v_head, d_v]."""
        config, ops, n_rows = self.config, self.ops, len(rows.mixed)
        mixed = ops.silu(ops.causal_conv(rows.mixed, self.conv, state.conv, segments))
        d_key = config.n_k_head * config.d_k
        query = ops.l2_norm(mixed[:, :d_key].reshape(n_rows, config.n_k_head, config.d_k), _L2_EPS) * config.d_k**-0.5
        key = ops.l2_norm(mixed[:, d_key : 2 * d_key].reshape(n_rows, config.n_k_head, config.d_k), _L2_EPS)
        value = mixed[:, 2 * d_key :].reshape(n_rows, config.n_v_head, config.d_v)
        log_decay = self.decay_rate * ops.softplus(rows.alpha + self.decay_bias)  # [n, n_v_head]
        return ops.delta_rule(query, key, value, log_decay, ops.sigmoid(rows.beta), state.state, segments)
