"""Slices: the bytes of some experts of a model as a file of their own. The front door to cutting them.

`kvasir slice`, the market and the backbone plan and write slices through here; `slice_file` reads them back.
"""

from __future__ import annotations

from kvasir.errors import SliceError
from kvasir.experts import LayerExperts
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.expert_ranges import check_ranges, merge_ranges, parse_ranges
from kvasir.slicing.expert_tensors import find_expert_tensors, layer_experts
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slice_plan import ByteRange, SlicePlan, plan_slice
from kvasir.slicing.slice_writer import write_slice

__all__ = [
    "ByteRange",
    "SlicePlan",
    "check_ranges",
    "merge_ranges",
    "model_experts",
    "parse_ranges",
    "plan_slice",
    "write_slice",
]


def model_experts(index: GGUFIndex, card: ModelCard, layer: int) -> LayerExperts:
    """All experts of one layer of a whole model, as views of its mapped file; local ids are expert ids.

    Raises SliceError when the layer has no experts.
    """
    card.moe_layer(layer)
    tensors = find_expert_tensors(index, card.n_layer).get(layer)
    if tensors is None:
        raise SliceError(f"layer {layer} has experts in the model card, but not in this file")
    return layer_experts(index, tensors)
