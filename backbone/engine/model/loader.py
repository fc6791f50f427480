"""The dense tensors of a GGUF file, loaded one by one by the layers that need them.

A tensor that is missing, has another shape, or is left over at the end raises an error that names it. Quantised
matrices stay mapped in place (`Ops.make_linear` gets a view). Routed experts and unused MTP layers are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from backbone.engine.ops.interface import Linear, Ops
from backbone.engine.ops.model_config import ModelConfig, MoEConfig, Presence
from kvasir.errors import GGUFError, UnsupportedModelError
from kvasir.experts import WeightMatrix
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.expert_tensors import ExpertTensors, find_expert_tensors, layer_of

_NAMED_LEFT_OVERS = 5


class DenseTensors:
    """The tensors below a name prefix, and a record of those that were loaded."""

    def __init__(self, index: GGUFIndex, ops: Ops, *, prefix: str = "", taken: set[str] | None = None) -> None:
        self._index = index
        self._ops = ops
        self._prefix = prefix
        self._taken = set() if taken is None else taken

    def below(self, prefix: str) -> DenseTensors:
        """Return the tensors of the same file below a longer prefix."""
        return DenseTensors(self._index, self._ops, prefix=self._prefix + prefix, taken=self._taken)

    def has(self, name: str, presence: Presence) -> bool:
        """Return whether to load a tensor. A required one that is missing raises an error when it is loaded."""
        if presence is Presence.OPTIONAL:
            return self._prefix + name in self._index.tensors
        return presence is Presence.REQUIRED

    def linear(self, name: str, n_out: int, n_in: int, *, bias: Presence = Presence.ABSENT) -> Linear:
        """Load `name.weight` [n_out, n_in], with `name.bias` [n_out] by its presence."""
        bias_values = self.vector(f"{name}.bias", n_out) if self.has(f"{name}.bias", bias) else None
        return self._ops.make_linear(self.matrix(f"{name}.weight", n_out, n_in), bias_values)

    def row_linear(self, name: str, n_in: int) -> Linear:
        """Load a vector `name.weight` [n_in] as a linear with one output."""
        full = self._take(f"{name}.weight", (n_in,), (1, n_in))
        return self._ops.make_linear(
            WeightMatrix(self._index.tensors[full].quant_type, 1, n_in, self._index.bytes_of(full))
        )

    def matrix(self, name: str, n_out: int, n_in: int) -> WeightMatrix:
        """Load a matrix [n_out, n_in] as the file stores it."""
        return self._index.matrix(self._take(name, (n_out, n_in)))

    def rows(self, name: str, n_in: int) -> WeightMatrix:
        """Load a matrix with rows of n_in weights, with any number of rows."""
        n_out = self._index.tensor(self._prefix + name).shape[0]
        return self.matrix(name, n_out, n_in)

    def vector(self, name: str, *shape: int) -> Tensor:
        """Load a small float tensor in the type and on the device of the Ops."""
        values = torch.from_numpy(self._index.values(self._take(name, shape)))
        return values.to(self._ops.dtype).to(self._ops.device)

    def leave(self, name: str) -> None:
        """Count a tensor as loaded, as another module reads it."""
        self._taken.add(self._prefix + name)

    def check_all_taken(self, config: ModelConfig) -> None:
        """Raise UnsupportedModelError naming tensors that no layer loaded, apart from those of MTP layers."""
        left_over = [name for name in self._index.tensors if name not in self._taken and not _is_mtp(name, config)]
        if left_over:
            names = ", ".join(left_over[:_NAMED_LEFT_OVERS]) + (", ..." if len(left_over) > _NAMED_LEFT_OVERS else "")
            raise UnsupportedModelError(
                f"{len(left_over)} tensors are not part of {config.architecture} as it is supported here: {names}"
            )

    def _take(self, name: str, *shapes: tuple[int, ...]) -> str:
        full = self._prefix + name
        info = self._index.tensor(full)
        if info.shape not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise GGUFError(f"tensor {full!r} has shape {list(info.shape)}, the metadata asks for {wanted}")
        self._taken.add(full)
        return full


def _is_mtp(name: str, config: ModelConfig) -> bool:
    layer = layer_of(name)
    return layer is not None and config.n_layer <= layer < config.n_layer + config.n_mtp_layer


def leave_experts(index: GGUFIndex, config: ModelConfig, tensors: DenseTensors) -> None:
    """Check that every MoE layer has its routed experts, and leave them to the expert store.

    Raises GGUFError for a layer whose experts are missing or whose counts or shapes do not match the metadata.
    """
    found = find_expert_tensors(index, config.n_layer)
    for layer in config.layers:
        if isinstance(layer.ffn, MoEConfig):
            experts = _checked_experts(found, layer.layer, layer.ffn, config.d_model)
            for info in experts.weights:
                tensors.leave(info.name)


def _checked_experts(found: Mapping[int, ExpertTensors], layer: int, moe: MoEConfig, d_model: int) -> ExpertTensors:
    experts = found.get(layer)
    if experts is None:
        raise GGUFError(
            f"the tensor 'blk.{layer}.ffn_down_exps.weight' is missing: layer {layer} has no routed experts"
        )
    if (experts.n_expert, experts.d_model) != (moe.router.n_expert, d_model):
        raise GGUFError(
            f"layer {layer} has {experts.n_expert} experts of width {experts.d_model}, the metadata says "
            f"{moe.router.n_expert} of width {d_model}"
        )
    return experts
