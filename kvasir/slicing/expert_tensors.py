"""The tensors of a GGUF file that hold routed experts, found and checked layer by layer.

`model_card` describes them, `slices` cuts them, `layer_experts` passes them to kernels. An expert is contiguous in each
of its tensors, because the expert index is the outermost dimension. Unknown expert tensors raise an error that names
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType

from kvasir.errors import GGUFError, UnsupportedModelError
from kvasir.experts import ExpertStack, FloatRows, LayerExperts
from kvasir.gguf.index import GGUFIndex, TensorInfo

_EXPERT_TENSOR = re.compile(
    r"blk\.(?P<layer>0|[1-9]\d{0,5})\.ffn_(?P<role>gate|up|down|gate_up)_exps\.(?P<kind>weight|bias)", re.ASCII
)
_PER_EXPERT_TENSOR = re.compile(r"blk\.\d+\.ffn_(gate|up|down)\.\d+\.(weight|bias)")
_LAYER = re.compile(r"blk\.(?P<layer>0|[1-9]\d{0,5})\.", re.ASCII)
_WEIGHTS = ("gate.weight", "up.weight", "gate_up.weight", "down.weight")
_BIASES = ("gate.bias", "up.bias", "gate_up.bias", "down.bias")


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """The tensors that hold one layer's routed experts, with shapes that agree.

    `weights` is (gate, up, down), or (gate_up, down) when gate and up are fused: then each expert has its gate rows
    first and its up rows after them. `biases` has the same order and holds those that the model has.
    """

    layer: int
    n_expert: int
    d_model: int
    d_ff: int
    weights: tuple[TensorInfo, ...]
    biases: tuple[TensorInfo, ...]

    @property
    def is_fused(self) -> bool:
        return len(self.weights) == 2

    @property
    def all_tensors(self) -> tuple[TensorInfo, ...]:
        """Return the weights, then the biases."""
        return self.weights + self.biases

    @property
    def expert_bytes(self) -> int:
        """Return the stored bytes of one expert over all tensors."""
        return sum(info.n_bytes for info in self.all_tensors) // self.n_expert

    @property
    def quant_types(self) -> tuple[GGMLQuantizationType, GGMLQuantizationType, GGMLQuantizationType]:
        """Return the types of gate, up and down."""
        return self.weights[0].quant_type, self.weights[-2].quant_type, self.weights[-1].quant_type


@dataclass(frozen=True, slots=True)
class BytePlace:
    """`n_bytes` bytes at `offset` of part number `part` of a GGUF file or split set."""

    part: int
    offset: int
    n_bytes: int

    @property
    def stop(self) -> int:
        """Return the first offset after these bytes."""
        return self.offset + self.n_bytes


def find_expert_tensors(index: GGUFIndex, n_layer: int) -> dict[int, ExpertTensors]:
    """Return the experts of layers 0 to `n_layer` - 1 in ascending order, without layers that have none.

    Tensors of later layers (multi-token prediction) are ignored. Raises UnsupportedModelError for unknown expert
    tensors, GGUFError for a layer whose tensors do not fit together.
    """
    found: dict[int, dict[str, TensorInfo]] = {}
    for name, info in index.tensors.items():
        match = _EXPERT_TENSOR.fullmatch(name)
        if match is None:
            _refuse_unknown(name, n_layer)
        elif int(match["layer"]) < n_layer:
            found.setdefault(int(match["layer"]), {})[f"{match['role']}.{match['kind']}"] = info
    return {layer: _checked(layer, found[layer]) for layer in sorted(found)}


def expert_places(tensors: ExpertTensors, local_id: int) -> tuple[BytePlace, ...]:
    """Return the places of one expert's bytes in the order of its digest: weights, then biases."""
    places = []
    for info in tensors.all_tensors:
        n_bytes = info.n_bytes // tensors.n_expert
        places.append(BytePlace(info.part, info.offset + local_id * n_bytes, n_bytes))
    return tuple(places)


def layer_experts(index: GGUFIndex, tensors: ExpertTensors) -> LayerExperts:
    """Return all experts of a layer as views of the mapped file; fused gate and up become strided stacks."""
    if tensors.is_fused:
        both = _stack(index, tensors.weights[0])
        half = both.n_out // 2
        cut = both.data.shape[1] // 2
        gate = ExpertStack(both.quant_type, half, both.n_in, both.data[:, :cut])
        up = ExpertStack(both.quant_type, half, both.n_in, both.data[:, cut:])
    else:
        gate, up = _stack(index, tensors.weights[0]), _stack(index, tensors.weights[1])
    biases = {_role(info.name): index.values(info.name) for info in tensors.biases}
    if "gate_up" in biases:
        biases["gate"], biases["up"] = np.split(biases["gate_up"], 2, axis=1)
    return LayerExperts(
        tensors.layer,
        gate,
        up,
        _stack(index, tensors.weights[-1]),
        gate_bias=_contiguous(biases.get("gate")),
        up_bias=_contiguous(biases.get("up")),
        down_bias=_contiguous(biases.get("down")),
    )


def _contiguous(bias: FloatRows | None) -> FloatRows | None:
    return None if bias is None else np.ascontiguousarray(bias)


def _role(name: str) -> str:
    match = _EXPERT_TENSOR.fullmatch(name)
    if match is None:
        raise GGUFError(f"tensor {name!r} is not an expert tensor")
    return match["role"]


def _stack(index: GGUFIndex, info: TensorInfo) -> ExpertStack:
    n_expert, n_out, n_in = info.shape
    return ExpertStack(info.quant_type, n_out, n_in, index.bytes_of(info.name).reshape(n_expert, -1))


def layer_of(tensor_name: str) -> int | None:
    """Return the layer number of a tensor named `blk.{layer}.…`, or None."""
    match = _LAYER.match(tensor_name)
    return None if match is None else int(match["layer"])


def _refuse_unknown(name: str, n_layer: int) -> None:
    layer = layer_of(name)
    if layer is not None and layer >= n_layer:
        return
    if _PER_EXPERT_TENSOR.fullmatch(name):
        raise UnsupportedModelError(
            f"tensor {name!r} holds a single expert, a layout of 2023; convert the model again to get stacked experts"
        )
    if "exps" in name:
        raise UnsupportedModelError(
            f"tensor {name!r} is not supported: experts are gate, up, down (or gate_up) weights and biases"
        )


def _checked(layer: int, named: dict[str, TensorInfo]) -> ExpertTensors:
    weight_keys = _weight_keys(layer, named)
    weights = tuple(named[key] for key in weight_keys)
    _check_dims(weights, 3)
    n_expert, d_model, d_ff = weights[-1].shape
    gate_rows = 2 * d_ff if len(weights) == 2 else d_ff
    for info in weights[:-1]:
        _check_shape(info, (n_expert, gate_rows, d_model))
    biases = tuple(named[key] for key in _BIASES if key in named)
    for info in biases:
        _check_shape(info, (n_expert, {"gate_up": 2 * d_ff, "down": d_model}.get(_role(info.name), d_ff)))
        if info.quant_type is not GGMLQuantizationType.F32:
            raise UnsupportedModelError(f"tensor {info.name!r} is {info.quant_type.name}; expert biases must be F32")
    return ExpertTensors(layer, n_expert, d_model, d_ff, weights, biases)


def _weight_keys(layer: int, named: dict[str, TensorInfo]) -> Iterable[str]:
    has = [key for key in _WEIGHTS if key in named]
    if has in (["gate.weight", "up.weight", "down.weight"], ["gate_up.weight", "down.weight"]):
        fused_bias, split_bias = "gate_up.bias" in named, "gate.bias" in named or "up.bias" in named
        if (fused_bias and len(has) == 3) or (split_bias and len(has) == 2):
            raise UnsupportedModelError(f"layer {layer}: of expert weights and biases only one is fused")
        return has
    if has == ["up.weight", "down.weight"]:
        raise UnsupportedModelError(f"layer {layer}: experts without a gate matrix are not supported")
    raise GGUFError(
        f"layer {layer}: experts need ffn_gate_exps, ffn_up_exps and ffn_down_exps (or ffn_gate_up_exps and "
        f"ffn_down_exps); the file has {', '.join(sorted(named))}"
    )


def _check_dims(weights: tuple[TensorInfo, ...], n_dims: int) -> None:
    for info in weights:
        if len(info.shape) != n_dims:
            raise GGUFError(f"tensor {info.name!r} has shape {info.shape}; expert weights have {n_dims} dimensions")


def _check_shape(info: TensorInfo, shape: tuple[int, ...]) -> None:
    if info.shape != shape:
        raise GGUFError(f"tensor {info.name!r} has shape {info.shape}; its layer's other tensors require {shape}")
