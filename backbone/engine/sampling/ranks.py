"""Which values of a row are the largest, in order: the ranks that the filters of `sampling.choice` ask for.

Equal values go by the lowest position, whatever they were told apart by on the way here. A vocabulary has a quarter of
a million tokens and a filter wants few: those are found by comparisons first, and only they are sorted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.floating[Any]]  # float32 or float64, none of them NaN
Positions = NDArray[np.int64]

_N_COLUMN = 64  # values of which only the best is compared first
_N_DIGIT_SORTED = 3000  # from so many values on, sorting by digits takes less time than by comparisons
_DIGIT_BITS = 16  # of this width numpy sorts by counting


def descending(values: Values) -> Positions:
    """Positions of all values, largest first."""
    if values.size < _N_DIGIT_SORTED:
        return np.argsort(-values, kind="stable")
    keys = _descending_keys(values)
    order = np.argsort(_digit(keys, 0), kind="stable")
    for shift in range(_DIGIT_BITS, 8 * keys.itemsize, _DIGIT_BITS):
        order = order[np.argsort(_digit(keys, shift)[order], kind="stable")]
    return order


def largest(values: Values, n_best: int) -> Positions:
    """Positions of the `n_best` largest values, or of all, largest first."""
    if n_best >= values.size:
        return descending(values)
    if n_best == 0:
        return np.empty(0, np.int64)
    found = at_least(values, lower_bound(values, n_best))
    return found[descending(values[found])][:n_best]


def lower_bound(values: Values, n_best: int) -> float:
    """A number that `n_best` of the values or more reach, but few others."""
    some, n_column = values, values.size // _N_COLUMN
    if n_column >= 2 * n_best:
        some = values[: n_column * _N_COLUMN].reshape(_N_COLUMN, n_column).max(axis=0)
    return float(np.partition(some, some.size - n_best)[some.size - n_best])


def at_least(values: Values, bound: float) -> Positions:
    """Ascending positions of the values that reach `bound`, which is first rounded down to what they can be."""
    with np.errstate(over="ignore"):
        rounded = values.dtype.type(bound)
        if float(rounded) > bound:
            rounded = np.nextafter(rounded, values.dtype.type(-np.inf))
    return np.flatnonzero(values >= rounded)


def _descending_keys(values: Values) -> NDArray[np.unsignedinteger[Any]]:
    """Unsigned numbers that rise as the values fall."""
    bits = (values + values.dtype.type(0)).view(f"u{values.itemsize}")  # of -0.0 and 0.0 one key
    sign = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    return np.where(bits & sign, bits, ~bits ^ sign)


def _digit(keys: NDArray[np.unsignedinteger[Any]], shift: int) -> NDArray[np.uint16]:
    return (keys >> keys.dtype.type(shift)).astype(np.uint16)
