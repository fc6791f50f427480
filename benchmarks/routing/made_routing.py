"""Routing of many experts with the habits that were measured of a trained router with few: its skew, and its pairs.

No file of the 122B is at hand, so `bench_wire` makes its choices: a row's logits are the experts' popularity (normal,
of deviation `skew`), plus the pull of the row's topic on each expert (normal, of deviation `pull`, 48 topics a layer),
plus Gumbel noise; the largest are chosen. Both deviations are fitted so that the made routing has the demo model's
measured

    busy share   calls of the busiest quarter of a layer's experts, by all calls
    lift         how much more often two experts are called by one row than their traffic alone would have it, the mean
                 over the pairs of held-out rows

Whether a trained router of 256 experts has the same two figures is not known. Nothing else of one is modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.routing.real_routing import Routed, calls_together

N_TOPICS = 48
N_FIT_ROWS = 4096
Weights = npt.NDArray[np.float32]  # [T, n_used] of the combine


@dataclass(frozen=True, slots=True)
class Habits:
    """The measured facts of a router."""

    busy_share: float
    lift: float


@dataclass(frozen=True, slots=True)
class MadeRouter:
    """Deviations of popularity and of the topics' pull, for layers of `n_expert` experts."""

    n_expert: int
    n_used: int
    skew: float
    pull: float

    def route(self, layer: int, n_rows: int, seed: int) -> tuple[Routed, Weights]:
        """Experts, the likeliest first, and softmax weights of some rows; `seed` draws rows, the layer its habits."""
        habits, rng = np.random.default_rng([layer, 1]), np.random.default_rng([layer, seed, 2])
        popularity = self.skew * habits.standard_normal(self.n_expert)
        topics = self.pull * habits.standard_normal((N_TOPICS, self.n_expert))
        logits = popularity + topics[rng.integers(0, N_TOPICS, n_rows)] + rng.gumbel(size=(n_rows, self.n_expert))
        chosen = np.argsort(-logits, axis=1)[:, : self.n_used]
        kept = np.take_along_axis(logits, chosen, axis=1)
        weights = np.exp(kept - kept[:, :1])
        return chosen.astype(np.int32), (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def habits_of(layers: Iterable[Routed], n_expert: int) -> Habits:
    """The mean over layers. Pairs are learned from the first half of each layer's rows and met in the second."""
    shares, lifts = [], []
    for routed in layers:
        half = len(routed) // 2
        traffic = np.bincount(routed.reshape(-1), minlength=n_expert) / routed.size
        shares.append(np.sort(traffic)[-n_expert // 4 :].sum())
        together = calls_together(routed[:half], n_expert).astype(np.float64)
        alone = np.outer(together.diagonal(), together.diagonal())
        np.fill_diagonal(together, 0.0)
        np.fill_diagonal(alone, 0.0)
        expected = alone * (together.sum() / alone.sum())
        lift = np.divide(together, expected, out=np.ones_like(expected), where=expected > 0)
        met = calls_together(routed[half:], n_expert).astype(np.float64)
        np.fill_diagonal(met, 0.0)
        lifts.append((met * lift).sum() / met.sum())
    return Habits(float(np.mean(shares)), float(np.mean(lifts)))


def fitted_router(habits: Habits, n_expert: int, n_used: int) -> MadeRouter:
    """A router with these habits, by bisection of one deviation after the other."""
    skew, pull = 0.5, 0.5
    for _ in range(3):
        skew = _bisect(lambda s: _made(n_expert, n_used, s, pull).busy_share, habits.busy_share)  # noqa: B023
        pull = _bisect(lambda p: _made(n_expert, n_used, skew, p).lift, habits.lift)  # noqa: B023
    return MadeRouter(n_expert, n_used, skew, pull)


def _made(n_expert: int, n_used: int, skew: float, pull: float) -> Habits:
    router = MadeRouter(n_expert, n_used, skew, pull)
    return habits_of([router.route(layer, N_FIT_ROWS, seed=0)[0] for layer in range(2)], n_expert)


def _bisect(figure: Callable[[float], float], wanted: float) -> float:
    low, high = 0.0, 4.0
    for _ in range(7):
        middle = (low + high) / 2
        low, high = (middle, high) if figure(middle) < wanted else (low, middle)
    return (low + high) / 2
