"""The second half of a layer: a dense FFN, or routed experts beside a shared one.

The router runs once, on the backbone. The step's ExpertCaller computes the routed experts, and the shared expert is
computed meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

from torch import Tensor

from backbone.engine.model.batch import Step
from backbone.engine.model.expert_caller import SummingCaller
from backbone.engine.model.loader import DenseTensors
from backbone.engine.ops.interface import Linear, Ops, Routing
from backbone.engine.ops.model_config import (
    DenseFFNConfig,
    LayerConfig,
    ModelConfig,
    MoEConfig,
    Presence,
    RouterConfig,
    SharedExpertConfig,
)


class FFN(Protocol):
    """The part of a layer that treats each row on its own."""

    async def forward(self, x: Tensor, step: Step) -> Tensor:
        """Map normalised rows [T, d_model] to what is added to the residual stream [T, d_model]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class GatedFFN:
    """Compute down(silu(gate(x)) * up(x))."""

    ops: Ops
    gate: Linear
    up: Linear
    down: Linear

    @classmethod
    def load(cls, tensors: DenseTensors, suffix: str, d_ff: int, d_model: int, ops: Ops) -> Self:
        """Load ffn_gate, ffn_up and ffn_down with a suffix."""
        return cls(
            ops,
            gate=tensors.linear(f"ffn_gate{suffix}", d_ff, d_model),
            up=tensors.linear(f"ffn_up{suffix}", d_ff, d_model),
            down=tensors.linear(f"ffn_down{suffix}", d_model, d_ff),
        )

    def compute(self, x: Tensor) -> Tensor:
        """x [T, d_model] -> [T, d_model]."""
        gate, up = self.ops.linear(x, self.gate, self.up)
        return self.ops.linear(self.ops.silu_mul(gate, up), self.down)[0]


@dataclass(frozen=True, slots=True, eq=False)
class DenseFFN:
    """Implement `FFN` without experts."""

    ffn: GatedFFN

    async def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [T, d_model] -> [T, d_model]."""
        return self.ffn.compute(x)


@dataclass(frozen=True, slots=True, eq=False)
class SharedExpert:
    """The expert of every row, scaled by a gate if there is one."""

    ops: Ops
    ffn: GatedFFN
    gate: Linear | None

    @classmethod
    def load(cls, tensors: DenseTensors, config: SharedExpertConfig, d_model: int, ops: Ops) -> Self:
        """Load the `_shexp` tensors."""
        ffn = GatedFFN.load(tensors, "_shexp", config.d_ff, d_model, ops)
        return cls(ops, ffn, tensors.row_linear("ffn_gate_inp_shexp", d_model) if config.is_gated else None)

    def compute(self, x: Tensor) -> Tensor:
        """x [T, d_model] -> [T, d_model]."""
        out = self.ffn.compute(x)
        return out if self.gate is None else out * self.ops.sigmoid(self.ops.linear(x, self.gate)[0])


@dataclass(frozen=True, slots=True, eq=False)
class MoE:
    """Implement `FFN` with routed experts."""

    layer: int
    config: RouterConfig
    ops: Ops
    router: Linear
    selection_bias: Tensor | None  # [n_expert]
    shared_expert: SharedExpert | None

    @classmethod
    def load(cls, tensors: DenseTensors, layer: int, config: MoEConfig, d_model: int, ops: Ops) -> Self:
        """Load the router's and the shared expert's tensors."""
        router, shared = config.router, config.shared_expert
        return cls(
            layer=layer,
            config=router,
            ops=ops,
            router=tensors.linear("ffn_gate_inp", router.n_expert, d_model, bias=Presence.ABSENT),
            selection_bias=tensors.vector("exp_probs_b.bias", router.n_expert) if router.has_selection_bias else None,
            shared_expert=SharedExpert.load(tensors, shared, d_model, ops) if shared else None,
        )

    async def forward(self, x: Tensor, step: Step) -> Tensor:
        """Route x [T, d_model] and combine the experts: [T, d_model]. Rows and routing are submitted on the CPU."""
        logits = self.ops.linear(x, self.router)[0]  # [T, n_expert]
        routing = self.ops.route(logits, self.config, self.selection_bias)
        experts = step.experts
        summing = experts if isinstance(experts, SummingCaller) and experts.has_sums else None
        if summing is not None:
            on_cpu = Routing(routing.expert_ids.cpu(), routing.weights.cpu())
            under_way = summing.submit_sums(self.layer, x.cpu(), on_cpu)
        else:
            under_way = experts.submit(self.layer, x.cpu(), routing.expert_ids.cpu())
        shared = self.shared_expert.compute(x) if self.shared_expert else None
        answer = (await under_way).to(x.device)
        combined = answer if summing is not None else self.ops.combine(answer, routing.weights)
        return combined if shared is None else combined + shared


def load_ffn(tensors: DenseTensors, layer: LayerConfig, model: ModelConfig, ops: Ops) -> FFN:
    """Load a layer's FFN from the tensors below `blk.N.`."""
    match layer.ffn:
        case DenseFFNConfig(d_ff):
            return DenseFFN(GatedFFN.load(tensors, "", d_ff, model.d_model, ops))
        case MoEConfig():
            return MoE.load(tensors, layer.layer, layer.ffn, model.d_model, ops)
