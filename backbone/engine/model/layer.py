"""One layer of a model: norms, a mixer and an FFN around the residual stream.

`model` runs its decoding layers through it, and `mtp_layer` the MTP head's. Another kind of mixer is another entry in
_LOADERS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from torch import Tensor

from backbone.engine.model.attention import Attention
from backbone.engine.model.batch import Step
from backbone.engine.model.ffn import FFN, load_ffn
from backbone.engine.model.gated_delta import GatedDelta
from backbone.engine.model.kv_cache import Kept, SlotCache
from backbone.engine.model.loader import DenseTensors
from backbone.engine.ops.interface import Ops
from backbone.engine.ops.model_config import AttentionConfig, GatedDeltaConfig, LayerConfig, ModelConfig


class Mixer(Protocol):
    """The part of a layer in which the rows of a sequence see each other."""

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Map normalised rows [T, d_model] to what is added to the residual stream [T, d_model]."""
        ...

    def settle(self, cache: SlotCache, kept: Sequence[Kept]) -> None:
        """Advance the layer's state by the rows of tentative segments that are kept."""
        ...


_LOADERS: Mapping[type, Callable[[DenseTensors, int, Any, ModelConfig, Ops], Mixer]] = {
    AttentionConfig: Attention.load,
    GatedDeltaConfig: GatedDelta.load,
}


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
        """Load the layer's tensors."""
        return cls(
            ops=ops,
            norm_eps=model.norm_eps,
            mixer_norm=tensors.vector("attn_norm.weight", model.d_model),
            mixer=_LOADERS[type(layer.mixer)](tensors, layer.layer, layer.mixer, model, ops),
            ffn_norm=tensors.vector(f"{layer.ffn_norm}.weight", model.d_model),
            ffn=load_ffn(tensors, layer, model, ops),
        )

    async def forward(self, x: Tensor, step: Step) -> Tensor:
        """Return the residual stream [T, d_model] after this layer."""
        x = x + self.mixer.forward(self.ops.rms_norm(x, self.mixer_norm, self.norm_eps), step)
        return x + await self.ffn.forward(self.ops.rms_norm(x, self.ffn_norm, self.norm_eps), step)
