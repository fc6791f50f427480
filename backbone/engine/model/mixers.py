"""The kinds of mixers by their config class: another kind of attention is another line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from backbone.engine.model.attention import Attention
from backbone.engine.model.gated_delta import GatedDelta
from backbone.engine.model.kv_cache import Kept, SlotCache
from backbone.engine.model.loader import DenseTensors
from backbone.engine.model.step import Step
from backbone.engine.ops.interface import Ops
from backbone.engine.ops.model_config import AttentionConfig, GatedDeltaConfig, LayerConfig, ModelConfig


class Mixer(Protocol):
    """The part of a layer in which rows of a sequence see each other."""

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Normalised rows [T, d_model] -> what is added to the residual stream [T, d_model]."""
        ...

    def settle(self, cache: SlotCache, kept: Sequence[Kept]) -> None:
        """Bring the layer's state to the rows that are kept of tentative segments."""
        ...


_LOADERS: Mapping[type, Callable[[DenseTensors, int, Any, ModelConfig, Ops], Mixer]] = {
    AttentionConfig: Attention.load,
    GatedDeltaConfig: GatedDelta.load,
}


def load_mixer(tensors: DenseTensors, layer: LayerConfig, model: ModelConfig, ops: Ops) -> Mixer:
    """Take a layer's mixer from the tensors below `blk.N.`."""
    return _LOADERS[type(layer.mixer)](tensors, layer.layer, layer.mixer, model, ops)
