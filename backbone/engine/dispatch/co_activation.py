"""An order of a layer's experts in which experts that rows call together are neighbours. Pure.

Workers hold ranges of consecutive experts: the fewer ranges a row's experts lie in, the fewer workers it is sent to.
The layer is halved recursively. Each time, swaps bring experts that are called together to the same side, while both
sides keep about the same traffic, so every aligned range of a power of two of a layer is such a group.
`kvasir.slicing.expert_renumbering` writes a model in that order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Order = npt.NDArray[np.int64]  # [n_expert]: the expert at each place
MOST_UNEVEN = 1.15  # traffic of the busier half, relative to the mean of both

_Weights = npt.NDArray[np.float64]


def order_experts(together: npt.NDArray[np.integer], *, most_uneven: float = MOST_UNEVEN) -> Order:
    """Return the order for counts [n_expert, n_expert] of rows that called two experts; on the diagonal, one.

    The same counts give the same order. Raises ValueError if the counts are not symmetric.
    """
    weights = together.astype(np.float64)
    if weights.ndim != 2 or not np.array_equal(weights, weights.T):
        raise ValueError("the counts of experts that are called together must be a symmetric matrix")
    traffic = weights.diagonal().copy()
    np.fill_diagonal(weights, 0.0)
    return _ordered(np.arange(len(weights)), weights, traffic, most_uneven)


def _ordered(experts: Order, weights: _Weights, traffic: _Weights, most_uneven: float) -> Order:
    if len(experts) <= 2:
        return experts
    side = _halves(weights[np.ix_(experts, experts)], traffic[experts], most_uneven)
    halves = [_ordered(experts[side == number], weights, traffic, most_uneven) for number in (0, 1)]
    return np.concatenate(halves)


def _halves(weights: _Weights, traffic: _Weights, most_uneven: float) -> npt.NDArray[np.int8]:
    """Return a side, 0 or 1, for each expert: dealt out by traffic, then the best swap until none improves it."""
    n = len(traffic)
    side = np.zeros(n, np.int8)
    side[np.argsort(-traffic, kind="stable")] = (np.arange(n) + 1) // 2 % 2  # 0 1 1 0 0 1 1 0
    most = max(most_uneven * traffic.sum() / 2, *(traffic[side == number].sum() for number in (0, 1)))
    for _ in range(n * n):
        left, right = np.flatnonzero(side == 0), np.flatnonzero(side == 1)
        pull = weights @ (side == 1) - weights @ (side == 0)  # to the right
        gain = pull[left][:, None] - pull[right][None, :] - 2 * weights[np.ix_(left, right)]
        moved = traffic[right][None, :] - traffic[left][:, None]
        fits = (traffic[left].sum() + moved <= most) & (traffic[right].sum() - moved <= most)
        gain = np.where(fits, gain, -np.inf)
        best = int(gain.argmax())
        one, other = left[best // len(right)], right[best % len(right)]
        if gain.flat[best] <= 1e-9 * (1.0 + weights.max()):
            break
        side[one], side[other] = 1, 0
    return side
