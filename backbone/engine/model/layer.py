"""One layer of a model: norms, a mixer and an FFN around the residual stream.

`model` runs its decoding layers through it, and `mtp_layer` the one of the MTP head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from backbone.engine.model.ffn import FFN, load_ffn
from backbone.engine.model.loader import DenseTensors
from backbone.engine.model.mixers import Mixer, load_mixer
from backbone.engine.model.step import Step
from backbone.engine.ops.interface import Ops
from backbone.engine.ops.model_config import LayerConfig, ModelConfig


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Two norms, a mixer and an FFN."""

    ops: Ops
    norm_eps: float
    mixer_norm: Tensor  # [d_model]
    mixer: Mixer
    ffn_norm: Tensor  # [d_model]
    ffn: FFN

    @classmethod
    def load(cls, tensors: DenseTensors, layer: LayerConfig, model: ModelConfig, ops: Ops) -> Self:
        """Take the layer's tensors."""
        return cls(
            ops=ops,
            norm_eps=model.norm_eps,
            mixer_norm=tensors.vector("attn_norm.weight", model.d_model),
            mixer=load_mixer(tensors, layer, model, ops),
            ffn_norm=tensors.vector(f"{layer.ffn_norm}.weight", model.d_model),
            ffn=load_ffn(tensors, layer, model, ops),
        )

    async def forward(self, x: Tensor, step: Step) -> Tensor:
        """The residual stream [T, d_model] after this layer."""
        x = x + self.mixer.forward(self.ops.rms_norm(x, self.mixer_norm, self.norm_eps), step)
        return x + await self.ffn.forward(self.ops.rms_norm(x, self.ffn_norm, self.norm_eps), step)
