"""Which experts the backbone should compute itself: pure, from sampled calls and measured times to a plan in a budget.

What a plan saves is counted call by call. A call waits for its workers

    remote = idle * (trip of its farthest worker + its remote pairs * pair_s)         0 when no pair is remote
    own    = its pairs computed here * own_s, while the remote ones travel
    time   = max(own, remote)

where `idle` is how much of the waiting the engine's thread really spends idle: with other requests to compute meanwhile
a round trip costs nothing, and there is nothing to save. A trip is saved only when all pairs of a call are computed
here, so on a slow network with few rows whole layers pay; with many rows, or pairs that cost much, busy experts do.
Called by `hot_cache`, off the engine's thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backbone.engine.dispatch.call_samples import Calls
from backbone.engine.swarm.measured import Measured
from backbone.engine.swarm.placement import ReplicaMap

BETTER_BY = 1.1  # a new plan replaces the old one when it saves so many times as much

Seconds = npt.NDArray[np.float64]  # [n_layer, n_expert]
HotExperts = tuple[frozenset[int], ...]  # by layer


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Measured times. An expert with a trip of 0 is held by no worker: it is computed here whatever the plan says."""

    trip_s: Seconds  # of the nearest worker that holds the expert
    pair_s: Seconds  # what each pair adds there, the layer's workers computing side by side
    own_s: float  # of a pair that is computed here
    idle: float = 1.0  # 0 to 1


def costs_of(
    shape: tuple[int, int],
    coverage: ReplicaMap,
    measured: Mapping[str, Measured],
    own_s: float,
    idle: float,
) -> Costs:
    """From what is known of the workers; `shape` is (layers, experts). Who was not measured yet counts as absent."""
    trip_s, pair_s = np.full(shape, np.inf), np.full(shape, np.inf)
    n_workers = np.zeros(shape[0])
    for worker_id, ranges in coverage.held.items():
        known = measured.get(worker_id)
        if known is None or known.n_answers < 2:
            continue
        for part in ranges:
            cells = part.layer, slice(part.start, part.stop)
            trip_s[cells] = np.minimum(trip_s[cells], known.base_s)
            pair_s[cells] = np.minimum(pair_s[cells], known.pair_s)
        for layer in {part.layer for part in ranges}:
            n_workers[layer] += 1
    held = np.isfinite(trip_s)
    pair_s = np.where(held, pair_s, 0.0) / np.maximum(n_workers, 1.0)[:, None]
    return Costs(np.where(held, trip_s, 0.0), pair_s, own_s, idle)


def plan_hot(
    calls: Sequence[Calls],
    costs: Costs,
    bytes_by_layer: Sequence[int],
    budget_bytes: int,
    before: HotExperts | None = None,
) -> HotExperts:
    """The experts to compute here. `calls` and `bytes_by_layer` (of one expert) are by layer; the same inputs give the
    same plan. `before` stays unless a new one is clearly better, or it does not fit any more.
    """
    orders = [_busiest(layer_calls, costs, layer) for layer, layer_calls in enumerate(calls)]
    curves = [_saved_by_first(calls[layer], orders[layer], costs, layer) for layer in range(len(calls))]
    sizes = _fill(curves, bytes_by_layer, budget_bytes)
    busy = [order[:size].tolist() for order, size in zip(orders, sizes, strict=True)]
    plan = _with_quiet(busy, orders, costs, bytes_by_layer, budget_bytes)
    if before is None or plan_bytes(before, bytes_by_layer) > budget_bytes:
        return plan
    return plan if saved_s(calls, costs, plan) > BETTER_BY * saved_s(calls, costs, before) else before


def plan_bytes(plan: HotExperts, bytes_by_layer: Sequence[int]) -> int:
    """Bytes of all experts of a plan."""
    return sum(len(hot) * n_bytes for hot, n_bytes in zip(plan, bytes_by_layer, strict=True))


def saved_s(calls: Sequence[Calls], costs: Costs, plan: HotExperts) -> float:
    """What a plan saves over all sampled calls, in seconds; below 0 when computing here takes longer."""
    total = 0.0
    for layer, layer_calls in enumerate(calls):
        is_remote = costs.trip_s[layer] > 0
        without = _seconds(layer_calls, is_remote, costs, layer)
        is_remote[list(plan[layer])] = False
        total += float((without - _seconds(layer_calls, is_remote, costs, layer)).sum())
    return total


def _seconds(calls: Calls, is_remote: npt.NDArray[np.bool_], costs: Costs, layer: int) -> npt.NDArray[np.float64]:
    """Seconds of each call [n_calls]."""
    trip = np.where((calls > 0) & is_remote, costs.trip_s[layer], 0.0).max(axis=1, initial=0.0)
    counts = calls.astype(np.float64)
    pairs = counts @ (costs.pair_s[layer] * is_remote)
    seconds: Seconds = np.maximum(costs.own_s * (counts @ ~is_remote), costs.idle * (trip + pairs))
    return seconds


def _busiest(calls: Calls, costs: Costs, layer: int) -> npt.NDArray[np.int64]:
    """Experts that workers hold and somebody called, the most called first."""
    traffic = np.where(costs.trip_s[layer] > 0, calls.sum(axis=0, dtype=np.int64), 0)
    order = np.argsort(-traffic, kind="stable")
    return order[: np.count_nonzero(traffic)]


def _saved_by_first(calls: Calls, order: npt.NDArray[np.int64], costs: Costs, layer: int) -> npt.NDArray[np.float64]:
    """Seconds saved when the first k of the order are computed here, for k from 0 on: [1 + n]."""
    ordered = calls[:, order].astype(np.float64)
    n_calls = len(ordered)
    always_here = calls.sum(axis=1) - ordered.sum(axis=1)
    edge = np.zeros((n_calls, 1))
    trips = np.where(ordered > 0, costs.trip_s[layer][order], 0.0)
    trips = np.maximum.accumulate(trips[:, ::-1], axis=1)[:, ::-1]
    pairs = np.cumsum((ordered * costs.pair_s[layer][order])[:, ::-1], axis=1)[:, ::-1]
    here = always_here[:, None] + np.hstack([edge, np.cumsum(ordered, axis=1)])
    seconds = np.maximum(costs.own_s * here, costs.idle * np.hstack([trips + pairs, edge]))
    total = seconds.sum(axis=0)
    saved: npt.NDArray[np.float64] = total[0] - total
    return saved


def _fill(curves: Sequence[npt.NDArray[np.float64]], bytes_by_layer: Sequence[int], budget_bytes: int) -> list[int]:
    """How many experts of each layer: always the step, of one or more experts, that saves most for its bytes."""
    sizes, room = [0] * len(curves), budget_bytes
    steps = [_best_step(curve, 0, room // n) for curve, n in zip(curves, map(_at_least_1, bytes_by_layer), strict=True)]
    while steps:
        layer = max(range(len(steps)), key=lambda n: steps[n][0] / _at_least_1(bytes_by_layer[n]))
        gain, size = steps[layer]
        if gain <= 0:
            break
        room -= (size - sizes[layer]) * bytes_by_layer[layer]
        sizes[layer] = size
        for number, n_bytes in enumerate(map(_at_least_1, bytes_by_layer)):
            if number == layer or (steps[number][1] - sizes[number]) * n_bytes > room:
                steps[number] = _best_step(curves[number], sizes[number], room // n_bytes)
    return sizes


def _with_quiet(
    busy: Sequence[list[int]],
    orders: Sequence[npt.NDArray[np.int64]],
    costs: Costs,
    bytes_by_layer: Sequence[int],
    budget_bytes: int,
) -> HotExperts:
    """Where all that were called are here, the others too while there is room: each would cost a trip one day."""
    plan = []
    room = budget_bytes - plan_bytes(tuple(map(frozenset, busy)), bytes_by_layer)
    for layer, hot in enumerate(busy):
        n_bytes = _at_least_1(bytes_by_layer[layer])
        is_quiet = costs.trip_s[layer] > 0
        is_quiet[hot] = False
        is_whole = bool(hot) and len(hot) == len(orders[layer])
        added = np.flatnonzero(is_quiet)[: room // n_bytes if is_whole else 0].tolist()
        room -= len(added) * n_bytes
        plan.append(frozenset([*hot, *added]))
    return tuple(plan)


def _best_step(curve: npt.NDArray[np.float64], size: int, n_fit: int) -> tuple[float, int]:
    """(seconds saved for each more expert, the size after it) of the best step from `size` on; (0, size): none."""
    stop = min(len(curve) - 1, size + n_fit)
    if stop <= size:
        return 0.0, size
    gains = (curve[size + 1 : stop + 1] - curve[size]) / np.arange(1, stop - size + 1)
    best = int(gains.argmax())
    return float(gains[best]), size + 1 + best


def _at_least_1(n_bytes: int) -> int:
    return max(n_bytes, 1)  # layers without experts have none, and no curve either
