"""A recurrent layer by the gated delta rule (Qwen3-Next, Qwen3.5), in GGUF's layout.

The model calls it in place of attention. Its state per sequence has a fixed size; value heads are stored tiled, so
value head h reads key head h % n_k_head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from backbone.engine.kv_cache import DeltaLayer
from backbone.engine.loader import DenseTensors
from backbone.engine.model_config import GatedDeltaConfig, ModelConfig
from backbone.engine.ops import Linear, Ops
from backbone.engine.step import Step

_L2_EPS = 1e-6  # fixed in the reference, whatever the model's norms use


@dataclass(frozen=True, slots=True, eq=False)
class GatedDelta:
    """Implements `mixers.Mixer`."""

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
        """Take the layer's tensors."""
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
        """x [T, d_model] -> [T, d_model]."""
        config, ops, n_rows = self.config, self.ops, x.shape[0]
        layer_state = step.cache.state(self.layer)
        if not isinstance(layer_state, DeltaLayer):
            raise TypeError(f"layer {self.layer} has no recurrent state")
        mixed, gate, alpha, beta = ops.linear(x, self.conv_inputs, self.output_gate, self.alpha, self.beta)
        mixed = ops.silu(ops.causal_conv(mixed, self.conv, layer_state.conv, step.segments))
        d_key = config.n_k_head * config.d_k
        query = ops.l2_norm(mixed[:, :d_key].reshape(n_rows, config.n_k_head, config.d_k), _L2_EPS) * config.d_k**-0.5
        key = ops.l2_norm(mixed[:, d_key : 2 * d_key].reshape(n_rows, config.n_k_head, config.d_k), _L2_EPS)
        value = mixed[:, 2 * d_key :].reshape(n_rows, config.n_v_head, config.d_v)
        log_decay = self.decay_rate * ops.softplus(alpha + self.decay_bias)  # [T, n_v_head]
        heads = ops.delta_rule(
            query, key, value, log_decay, ops.sigmoid(beta), layer_state.state, step.segments
        )  # [T, n_v_head, d_v]
        heads = ops.rms_norm(heads, self.norm, self.norm_eps)
        gated = ops.silu_mul(gate, heads.reshape(n_rows, config.d_value))
        return ops.linear(gated, self.output)[0]
