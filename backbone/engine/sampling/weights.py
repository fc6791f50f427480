"""Weights and ranks of tokens: the largest values in order, the nucleus, and the token that a random number points at.

Only `sampling.choice` calls it. Sums that decide a token are added in one order: a shortcut is taken only where that
sum's rounding could not change the answer. Ties in a ranking go to the lowest position. A vocabulary has a quarter of a
million tokens and a filter wants few, so comparisons find those first, and only they are sorted.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.floating[Any]]  # float32 or float64, without NaN
Positions = NDArray[np.int64]
Weights = NDArray[np.float64]

_N_BLOCK = 2048  # weights of a block, which is summed by itself
_MANY = 8 * _N_BLOCK
_ROUNDING = 2.0**-51  # four half units: of each added weight, in both orders, and of the total
_N_COLUMN = 64  # values of a column, of which only the best is compared first
_N_DIGIT_SORTED = 3000  # values from which sorting by digits is faster than by comparisons
_DIGIT_BITS = 16  # numpy sorts this width by counting


class _Scratch(threading.local):
    """A row of weights for each thread, as new memory for every token would cost as much as computing them."""

    def __init__(self) -> None:
        self._row = np.empty(0)

    def row(self, size: int) -> Weights:
        """Return float64 [size], which the next call overwrites."""
        if self._row.size != size:
            self._row = np.empty(size)
        return self._row


_scratch = _Scratch()


def scaled(values: Values, best: float, temperature: float, below: Weights | None = None) -> Weights:
    """Return (values - best) / temperature, which is 0 or less; written into `below` if that is given."""
    below = np.empty(values.size) if below is None else below
    np.copyto(below, values)
    with np.errstate(over="ignore"):  # a tiny temperature makes -inf of all but the likeliest, as it should
        below -= best
        if temperature != 1:
            below /= temperature
    return below


def weights_of(values: Values, best: float, temperature: float) -> Weights:
    """Return weights that are not normalised: that of the value `best` is 1."""
    weights = scaled(values, best, temperature)
    return np.exp(weights, out=weights)


def row_weights(values: Values, best: float, temperature: float) -> Weights:
    """Return `weights_of` in memory that the thread's next call overwrites."""
    weights = scaled(values, best, temperature, _scratch.row(values.size))
    return np.exp(weights, out=weights)


def nucleus(values: Values, best: float, temperature: float, top_p: float) -> tuple[Positions, Weights]:
    """Return positions, largest first, and weights of the fewest values that hold the share `top_p` of all weight.

    Scaling rounds close values together, so the order is the values' own.
    """
    weights = row_weights(values, best, temperature)
    total = weights.sum()
    # All weights below the bound together are less than half of the share that is left out.
    bound = max((1 - top_p) * total / (2 * weights.size), np.finfo(np.float64).tiny)
    near = at_least(values, best + temperature * float(np.log(bound)))
    order = near[descending(values[near])]
    n_wanted = n_in_share(weights[order], top_p * total)
    if n_wanted > order.size:
        order = descending(values)
        n_wanted = n_in_share(weights[order], top_p * total)
    order = order[:n_wanted]
    return order, weights[order]


def n_in_share(weights: Weights, wanted: float) -> int:
    """Return how many of the first weights reach `wanted`; one more than there are if all together do not."""
    return int(np.searchsorted(np.cumsum(weights), wanted)) + 1


def pick(weights: Weights, uniform: float) -> int:
    """Return the position that `uniform` in [0, 1) points at on a line on which each weight takes its share."""
    if weights.size >= _MANY:
        found = _pick_by_blocks(weights, uniform)
        if found is not None:
            return found
    cumulative = np.cumsum(weights)
    index = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
    last = np.searchsorted(cumulative, cumulative[-1])  # rounding may reach the total itself
    return int(min(index, last))


def _pick_by_blocks(weights: Weights, uniform: float) -> int | None:
    """Pick by sums of blocks; return None where the rounding of the sum in order might decide otherwise.

    A sum of n weights is off by less than n half units of the total, in any order. A position is certain when the sum
    before it is below the goal, and the sum with it above, by more than that error.
    """
    n_block = weights.size // _N_BLOCK
    sums = weights[: n_block * _N_BLOCK].reshape(n_block, _N_BLOCK).sum(axis=1)
    ends = np.cumsum(np.append(sums, weights[n_block * _N_BLOCK :].sum()))
    goal, slack = uniform * ends[-1], weights.size * _ROUNDING * ends[-1]
    block = int(np.searchsorted(ends, goal - slack, side="right"))
    if block == ends.size:
        return None
    first = block * _N_BLOCK
    inner = np.cumsum(weights[first : first + _N_BLOCK])
    if block:
        inner += ends[block - 1]
    low, high = np.searchsorted(inner, (goal - slack, goal + slack), side="right")
    return first + int(low) if low == high < inner.size else None


def descending(values: Values) -> Positions:
    """Return the positions of all values, largest first."""
    if values.size < _N_DIGIT_SORTED:
        return np.argsort(-values, kind="stable")
    keys = _descending_keys(values)
    order = np.argsort(_digit(keys, 0), kind="stable")
    for shift in range(_DIGIT_BITS, 8 * keys.itemsize, _DIGIT_BITS):
        order = order[np.argsort(_digit(keys, shift)[order], kind="stable")]
    return order


def largest(values: Values, n_best: int) -> Positions:
    """Return the positions of the `n_best` largest values, or of all, largest first."""
    if n_best >= values.size:
        return descending(values)
    if n_best == 0:
        return np.empty(0, np.int64)
    found = at_least(values, lower_bound(values, n_best))
    return found[descending(values[found])][:n_best]


def lower_bound(values: Values, n_best: int) -> float:
    """Return a number that at least `n_best` of the values reach, and few others."""
    some, n_column = values, values.size // _N_COLUMN
    if n_column >= 2 * n_best:
        some = values[: n_column * _N_COLUMN].reshape(_N_COLUMN, n_column).max(axis=0)
    return float(np.partition(some, some.size - n_best)[some.size - n_best])


def at_least(values: Values, bound: float) -> Positions:
    """Return the ascending positions of the values that reach `bound`, first rounded down to their type."""
    with np.errstate(over="ignore"):
        rounded = values.dtype.type(bound)
        if float(rounded) > bound:
            rounded = np.nextafter(rounded, values.dtype.type(-np.inf))
    return np.flatnonzero(values >= rounded)


def _descending_keys(values: Values) -> NDArray[np.unsignedinteger[Any]]:
    """Return unsigned numbers that rise as the values fall."""
    bits = (values + values.dtype.type(0)).view(f"u{values.itemsize}")  # -0.0 and 0.0 get one key
    sign = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    return np.where(bits & sign, bits, ~bits ^ sign)


def _digit(keys: NDArray[np.unsignedinteger[Any]], shift: int) -> NDArray[np.uint16]:
    return (keys >> keys.dtype.type(shift)).astype(np.uint16)
