"""What the kernels refuse before they compute: rows, row numbers and local ids that are not what they should be.

Called by `kx1` and `float_kernel`. Every function returns nothing or raises KernelError with the value.
"""

from __future__ import annotations

import numpy as np

from kvasir.errors import KernelError
from kvasir.experts import FloatRows
from kvasir.kernels.api import EncodedRows, Pairs


def check_float_rows(rows: FloatRows) -> None:
    """Rows must be f32 [n, d_model]."""
    if rows.ndim != 2 or rows.dtype != np.float32:
        raise KernelError(f"rows are {rows.dtype} of shape {rows.shape}; float32 [n, d_model] is needed")


def check_finite(rows: FloatRows) -> None:
    """Rows [n, d_model] must hold neither infinity nor NaN."""
    is_finite = np.isfinite(rows)
    if not is_finite.all():
        row, col = (int(i) for i in np.argwhere(~is_finite)[0])
        raise KernelError(f"row {row} holds {rows[row, col]} at {col}; rows must be finite")


def check_encoded_rows(rows: EncodedRows, row_bytes: int) -> None:
    """Encoded rows must be uint8 [n, row_bytes]."""
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != row_bytes:
        raise KernelError(f"rows are {rows.dtype} of shape {rows.shape}; uint8 [n, {row_bytes}] is needed")


def check_pairs(pair_rows: Pairs, pair_ids: Pairs) -> None:
    """Both must be int32 [n_pairs], of the same length."""
    for name, numbers in (("pair_rows", pair_rows), ("pair_ids", pair_ids)):
        if numbers.dtype != np.int32 or numbers.ndim != 1:
            raise KernelError(f"{name} is {numbers.dtype} of shape {numbers.shape}; int32 [n_pairs] is needed")
    if len(pair_rows) != len(pair_ids):
        raise KernelError(f"{len(pair_rows)} pair_rows but {len(pair_ids)} pair_ids; one of each a pair is needed")


def check_range(what: str, numbers: Pairs, stop: int) -> None:
    """Numbers must be 0 or more and below `stop`."""
    bad = numbers[(numbers < 0) | (numbers >= stop)]
    if len(bad):
        raise KernelError(f"{what} {int(bad[0])} does not exist; there are {stop}")


def check_packed_rows(rows: EncodedRows) -> None:
    """Packed KX1 rows [n, blocks * 261] must hold no code of -128 and no multiplier of 0."""
    blocks = rows.reshape(len(rows), rows.shape[1] // 261, 261)
    multipliers = blocks[..., 256:260]
    bad_code = (blocks[..., :256] == 0x80).any(axis=(1, 2))
    bad_multiplier = ((multipliers & 15 == 0) | (multipliers < 16)).any(axis=(1, 2))
    bad = np.flatnonzero(bad_code | bad_multiplier)
    if len(bad):
        what = "code -128" if bad_code[bad[0]] else "multiplier 0"
        raise KernelError(f"row {bad[0]} holds {what}; codes are -127 to 127 and multipliers 1 to 15")
