"""Checks before a kernel computes: rows, row numbers, local ids, and the matrices that KX1 supports.

Called by all kernels. `check_*` return nothing or raise KernelError with the value; `kx1_*` are the limits of the KX1
format (docs/reference/kx1.md).
"""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType

from kvasir.errors import KernelError
from kvasir.experts import ExpertStack, FloatRows, LayerExperts, WeightMatrix
from kvasir.kernels.api import EncodedRows, Pairs

KX1_BLOCK = 256  # activations under one exponent
KX1_PACKED_BLOCK = 261  # bytes of a block in packed rows
KX1_MAX_COLS = 16384
KX1_TYPES = (
    GGMLQuantizationType.Q4_K,
    GGMLQuantizationType.Q5_K,
    GGMLQuantizationType.Q6_K,
    GGMLQuantizationType.Q8_0,
)
_WIDTHS = f"a multiple of {KX1_BLOCK}, {KX1_BLOCK} to {KX1_MAX_COLS}"


def check_float_rows(rows: FloatRows) -> None:
    """Check that rows are f32 [n, d_model]."""
    if rows.ndim != 2 or rows.dtype != np.float32:
        raise KernelError(f"rows are {rows.dtype} of shape {rows.shape}; float32 [n, d_model] is needed")


def check_finite(rows: FloatRows, first: int = 0) -> None:
    """Check that rows [n, d_model] hold neither infinity nor NaN; errors call rows[0] row `first`."""
    is_finite = np.isfinite(rows)
    if not is_finite.all():
        row, col = (int(i) for i in np.argwhere(~is_finite)[0])
        raise KernelError(f"row {first + row} holds {rows[row, col]} at {col}; rows must be finite")


def check_encoded_rows(rows: EncodedRows, row_bytes: int) -> None:
    """Check that encoded rows are uint8 [n, row_bytes]."""
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != row_bytes:
        raise KernelError(f"rows are {rows.dtype} of shape {rows.shape}; uint8 [n, {row_bytes}] is needed")


def check_pairs(pair_rows: Pairs, pair_ids: Pairs) -> None:
    """Check that both are int32 [n_pairs]."""
    for name, numbers in (("pair_rows", pair_rows), ("pair_ids", pair_ids)):
        if numbers.dtype != np.int32 or numbers.ndim != 1:
            raise KernelError(f"{name} is {numbers.dtype} of shape {numbers.shape}; int32 [n_pairs] is needed")
    if len(pair_rows) != len(pair_ids):
        raise KernelError(f"{len(pair_rows)} pair_rows but {len(pair_ids)} pair_ids; each pair needs one of both")


def check_range(what: str, numbers: Pairs, stop: int) -> None:
    """Check that numbers are from 0 to `stop` - 1."""
    bad = numbers[(numbers < 0) | (numbers >= stop)]
    if len(bad):
        raise KernelError(f"{what} {int(bad[0])} does not exist; there are {stop}")


def check_packed_rows(rows: EncodedRows) -> None:
    """Check that packed KX1 rows [n, blocks * 261] hold no code of -128 and no multiplier of 0."""
    blocks = rows.reshape(len(rows), rows.shape[1] // KX1_PACKED_BLOCK, KX1_PACKED_BLOCK)
    multipliers = blocks[..., 256:260]
    bad_code = (blocks[..., :256] == 0x80).any(axis=(1, 2))
    bad_multiplier = ((multipliers & 15 == 0) | (multipliers < 16)).any(axis=(1, 2))
    bad = np.flatnonzero(bad_code | bad_multiplier)
    if len(bad):
        what = "code -128" if bad_code[bad[0]] else "multiplier 0"
        raise KernelError(f"row {bad[0]} holds {what}; codes are -127 to 127 and multipliers 1 to 15")


def kx1_row_bytes(d_model: int) -> int:
    """Return the bytes of one packed KX1 row: 261 for each 256 values. Raises KernelError for an unsupported width."""
    if not _is_width(d_model):
        raise KernelError(f"rows have {d_model} values; KX1 needs {_WIDTHS}")
    return d_model // KX1_BLOCK * KX1_PACKED_BLOCK


def kx1_refusal(experts: LayerExperts) -> str | None:
    """Return why KX1 cannot compute these experts, or None. Scales that are not finite are found when they are read."""
    if experts.has_bias:
        return f"layer {experts.layer} has expert biases, which KX1 does not compute"
    for name, stack in (("gate", experts.gate), ("up", experts.up), ("down", experts.down)):
        reason = kx1_matrix_refusal(stack)
        if reason is not None:
            return f"layer {experts.layer}: {name} {reason}"
    return None


def kx1_matrix_refusal(matrix: WeightMatrix | ExpertStack) -> str | None:
    """Return why KX1 cannot compute a matrix of this type and shape, or None."""
    if matrix.quant_type not in KX1_TYPES:
        return f"is {matrix.quant_type.name}; KX1 computes {', '.join(known.name for known in KX1_TYPES)}"
    if not _is_width(matrix.n_in):
        return f"has {matrix.n_in} columns; KX1 needs {_WIDTHS}"
    if matrix.n_out < 1:
        return f"has {matrix.n_out} rows; KX1 needs 1 or more"
    return None


def _is_width(cols: int) -> bool:
    return 0 < cols <= KX1_MAX_COLS and cols % KX1_BLOCK == 0
