"""Experts as plain data: ranges of experts, and weights as GGUF bytes.

`slicing` and the backbone's own replica build `LayerExperts` from a file; kernels compute with them. Nothing here
reads a file or does arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from kvasir.errors import KernelError, SliceError

Bytes2D = npt.NDArray[np.uint8]
FloatRows = npt.NDArray[np.float32]


def row_bytes(quant_type: GGMLQuantizationType, n_weights: int) -> int:
    """Return the bytes of one row of `n_weights` weights in a ggml type.

    Raises KernelError if the row is not a whole number of quant blocks.
    """
    block_weights, block_bytes = GGML_QUANT_SIZES[quant_type]
    if n_weights % block_weights:
        raise KernelError(f"{n_weights} weights a row are not whole {quant_type.name} blocks of {block_weights}")
    return n_weights // block_weights * block_bytes


@dataclass(frozen=True, slots=True, order=True)
class ExpertRange:
    """Experts `start` up to, not including, `stop` of one layer: the unit of coverage."""

    layer: int
    start: int
    stop: int

    def __post_init__(self) -> None:
        if self.layer < 0 or self.start < 0 or self.stop <= self.start:
            raise SliceError(
                f"expert range {self.layer}:{self.start}-{self.stop} is not valid: "
                "the layer must be 0 or more and 0 <= start < stop"
            )

    @property
    def n_experts(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, eq=False)
class WeightMatrix:
    """One weight matrix as GGUF stores it: `n_out` rows of `n_in` weights, mapped and never copied."""

    quant_type: GGMLQuantizationType
    n_out: int
    n_in: int
    data: npt.NDArray[np.uint8]  # [n_out * row_bytes], contiguous

    def __post_init__(self) -> None:
        wanted = self.n_out * row_bytes(self.quant_type, self.n_in)
        if self.data.shape != (wanted,) or not self.data.flags.c_contiguous:
            raise KernelError(f"matrix data has shape {self.data.shape}, {wanted} contiguous bytes are needed")


@dataclass(frozen=True, slots=True, eq=False)
class ExpertStack:
    """The same matrix of several experts. Axis 0 may be strided (fused gate_up tensors), axis 1 is contiguous."""

    quant_type: GGMLQuantizationType
    n_out: int
    n_in: int
    data: Bytes2D  # [n_expert, n_out * row_bytes]

    def __post_init__(self) -> None:
        wanted = self.n_out * row_bytes(self.quant_type, self.n_in)
        if self.data.ndim != 2 or self.data.shape[1] != wanted or self.data.strides[1] != 1:
            raise KernelError(f"expert data has shape {self.data.shape}, [n_expert, {wanted}] bytes are needed")

    @property
    def n_expert(self) -> int:
        return int(self.data.shape[0])

    def expert(self, local_id: int) -> WeightMatrix:
        """Return the matrix of one expert."""
        return WeightMatrix(self.quant_type, self.n_out, self.n_in, self.data[local_id])


@dataclass(frozen=True, slots=True, eq=False)
class LayerExperts:
    """The experts of one layer that a node holds, indexed by local id."""

    layer: int
    gate: ExpertStack  # n_out = d_ff, n_in = d_model
    up: ExpertStack  # n_out = d_ff, n_in = d_model
    down: ExpertStack  # n_out = d_model, n_in = d_ff
    gate_bias: FloatRows | None = None  # [n_expert, d_ff]
    up_bias: FloatRows | None = None  # [n_expert, d_ff]
    down_bias: FloatRows | None = None  # [n_expert, d_model]

    def __post_init__(self) -> None:
        counts = {self.gate.n_expert, self.up.n_expert, self.down.n_expert}
        d_model, d_ff = self.d_model, self.d_ff
        shapes = (self.gate.n_out, self.up.n_out, self.up.n_in, self.down.n_out)
        if len(counts) != 1 or shapes != (d_ff, d_ff, d_model, d_model):
            raise KernelError(f"layer {self.layer}: gate, up and down disagree about experts or shapes")

    @property
    def n_expert(self) -> int:
        return self.gate.n_expert

    @property
    def d_model(self) -> int:
        return self.gate.n_in

    @property
    def d_ff(self) -> int:
        return self.down.n_in

    @property
    def has_bias(self) -> bool:
        return not (self.gate_bias is None and self.up_bias is None and self.down_bias is None)
