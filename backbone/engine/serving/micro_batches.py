"""How many micro-batches are in flight, so that while one waits for workers another computes. Pure.

With C sequences in M groups, c(n) seconds that a layer call of n rows keeps the backbone busy, and a(n) seconds until
its last answer arrives, all groups together pass a layer in

    period(M) = max(M * c(C/M), c(C/M) + a(C/M))

The smallest M with (M-1) * c(C/M) >= a(C/M) hides the waiting. Where splitting costs more than waiting (a row costs
more in a smaller batch) that M is a loss, so the number of 1..M with the shortest period is taken. `service_core` feeds
a `GroupPlanner` after each step with the step's times and with what its layer calls waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Generator
from itertools import pairwise
from typing import Any, Generic, TypeVar

from backbone.engine.dispatch.counters import LayerTrip

T = TypeVar("T")
Seconds = Callable[[float], float]  # by rows

MOST_GROUPS = 16
REPLAN_S = 2.0
AVERAGE_WEIGHT = 1 / 8  # of a new step in the moving averages
GAIN = 0.05  # the least gain in period that is worth a change


class RowCosts:
    """Seconds by rows: moving averages by octaves of the number of rows, and straight lines between them."""

    def __init__(self) -> None:
        self._points: dict[int, tuple[float, float]] = {}  # rows and seconds, by octave

    def add(self, n_rows: int, seconds: float) -> None:
        """Add a measurement."""
        octave = n_rows.bit_length()
        rows, known = self._points.get(octave, (float(n_rows), seconds))
        moved = rows + AVERAGE_WEIGHT * (n_rows - rows), known + AVERAGE_WEIGHT * (seconds - known)
        self._points[octave] = moved

    def __call__(self, n_rows: float) -> float:
        """Return the seconds of `n_rows`; 0 before the first measurement.

        Below the measured rows the line through the two lowest points is used, if it is above proportion; above them
        the seconds are in proportion.
        """
        points = sorted(self._points.values())
        if not points:
            return 0.0
        if n_rows <= points[0][0]:
            return _below(n_rows, points)
        for (low, low_s), (high, high_s) in pairwise(points):
            if n_rows <= high:
                return low_s + (high_s - low_s) * (n_rows - low) / (high - low)
        return points[-1][1] * n_rows / points[-1][0]


def _below(n_rows: float, points: list[tuple[float, float]]) -> float:
    (low, low_s), (high, high_s) = points[0], points[-1] if len(points) == 1 else points[1]
    in_proportion = low_s * n_rows / low
    if high == low:
        return in_proportion
    slope = min(max((high_s - low_s) / (high - low), 0.0), low_s / low)
    return low_s - slope * (low - n_rows)


def smallest_that_hides(n_rows: int, busy: Seconds, away: Seconds, most: int) -> int:
    """Return the smallest M up to `most` with (M-1) * busy(n_rows/M) >= away(n_rows/M), or `most`."""
    for n_groups in range(1, most):
        share = n_rows / n_groups
        if (n_groups - 1) * busy(share) >= away(share):
            return n_groups
    return most


def layer_period_s(n_groups: int, n_rows: int, busy: Seconds, away: Seconds) -> float:
    """Return the seconds in which all groups together pass one layer."""
    share = n_rows / n_groups
    return max(n_groups * busy(share), busy(share) + away(share))


def next_n_groups(current: int, n_rows: int, busy: Seconds, away: Seconds, most: int) -> int:
    """Return the number of groups to use now. `current` stays unless another number's period is shorter by GAIN.

    The number at most doubles: the cost of fewer rows is a guess until it is measured.
    """
    most = max(1, min(most, n_rows))
    hiding = smallest_that_hides(n_rows, busy, away, most)
    best = min(range(1, hiding + 1), key=lambda n: layer_period_s(n, n_rows, busy, away))
    if current > most:
        return best
    gained = layer_period_s(best, n_rows, busy, away) < (1 - GAIN) * layer_period_s(current, n_rows, busy, away)
    return min(best, 2 * current) if gained else current


class GroupPlanner:
    """Decides how many of `most` groups take sequences, from the steps so far."""

    def __init__(self, most: int, *, is_fixed: bool, replan_s: float = REPLAN_S) -> None:
        """With `is_fixed` the number is always `most`."""
        self.most = most
        self.n_groups = most if is_fixed else 1
        self._steps = RowCosts()
        self._beside_s = 0.0
        self._is_fixed = is_fixed
        self._replan_s = replan_s
        self._planned_at = -math.inf
        self._base_s = 0.0
        self._row_s = 0.0
        self._has_trips = False

    def away(self, n_rows: float) -> float:
        """Return a(n): the seconds until the last answer to a layer call of `n_rows` arrives."""
        return self._base_s + self._row_s * n_rows

    def busy(self, n_rows: float) -> float:
        """Return c(n): the seconds that a layer call of `n_rows` keeps the backbone busy."""
        return self._steps(n_rows) + self._beside_s

    def note(self, step_s: float, beside_s: float, trip: LayerTrip) -> None:
        """Note a step that ran `step_s` seconds, `beside_s` of other work, and the mean of its layer calls."""
        if not trip.n_rows:
            return
        self._steps.add(trip.n_rows, step_s / trip.n_calls)
        self._beside_s += AVERAGE_WEIGHT * (beside_s / trip.n_calls - self._beside_s)
        weight = AVERAGE_WEIGHT if self._has_trips else 1.0
        self._base_s += weight * (trip.base_s - self._base_s)
        self._row_s += weight * (trip.work_s / trip.n_rows - self._row_s)
        self._has_trips = trip.base_s + trip.work_s > 0 or self._has_trips

    def replan(self, now: float, n_sequences: int) -> int:
        """Return the number of groups, planned again every `replan_s` seconds."""
        if not self._is_fixed and n_sequences and now - self._planned_at >= self._replan_s:
            self._planned_at = now
            self.n_groups = next_n_groups(self.n_groups, n_sequences, self.busy, self.away, self.most)
        return self.n_groups


class BusyMeter:
    """Separates a thread's work in steps from its other work. `clock` reads the thread's CPU seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.in_steps_s = 0.0
        self._read_s: float | None = None

    def beside_s(self) -> float:
        """Return the seconds since the last reading in which the thread worked outside of steps."""
        now_s = self.clock() - self.in_steps_s
        before_s, self._read_s = self._read_s, now_s
        return 0.0 if before_s is None else max(now_s - before_s, 0.0)


class Stopwatch(Generic[T]):
    """Awaits a step; `seconds` is how long it ran, without the time in which it waited."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], meter: BusyMeter) -> None:
        self._coroutine = coroutine
        self._meter = meter
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, None, T]:
        inner = self._coroutine.__await__()
        thrown: BaseException | None = None
        while True:
            begun = self._meter.clock()
            try:
                waited_for = inner.send(None) if thrown is None else inner.throw(thrown)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                ran_s = self._meter.clock() - begun
                self.seconds += ran_s
                self._meter.in_steps_s += ran_s
            try:
                yield waited_for
                thrown = None
            except BaseException as error:  # a cancel: the coroutine handles it
                thrown = error
