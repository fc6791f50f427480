"""The speed of one worker: moving averages over its answers, and what is under way to it now.

A transport keeps one `WorkerMeter` a worker; `replica_choice` and `dispatch.hedging` read its plain `Measured`.
Time comes in as seconds that passed, or from a clock that the transport gives.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

AVERAGE_WEIGHT = 1 / 16  # of a new answer in the moving averages
BASE_RISE = 1 / 256  # how fast the least time forgets, so that a slower network is noticed in the end
UNKNOWN_PAIR_S = 1e-4  # of a worker that has not answered yet
BUCKETS_PER_OCTAVE = 4
N_BUCKETS = 40
LOWEST_OCTAVE = -2  # ratios below 1/4 share the first bucket, above 256 the last
MAX_COUNT = 1024


@dataclass(frozen=True, slots=True)
class RatioHistogram:
    """Ratios of an answer's time to the expected time, in buckets a quarter of an octave wide; old counts fade."""

    counts: tuple[int, ...] = (0,) * N_BUCKETS

    def with_ratio(self, ratio: float) -> RatioHistogram:
        """Return the histogram with one more answer; at MAX_COUNT answers all counts are halved first."""
        counts = self.counts
        if sum(counts) >= MAX_COUNT:
            counts = tuple(count // 2 for count in counts)
        octaves = math.log2(max(ratio, 2.0**LOWEST_OCTAVE)) - LOWEST_OCTAVE
        bucket = min(int(octaves * BUCKETS_PER_OCTAVE), N_BUCKETS - 1)
        return RatioHistogram((*counts[:bucket], counts[bucket] + 1, *counts[bucket + 1 :]))

    def quantile(self, share: float) -> float:
        """Return a ratio that at least `share` of the answers did not exceed; 1 without answers."""
        wanted, seen = share * sum(self.counts), 0
        if wanted == 0:
            return 1.0
        for bucket, count in enumerate(self.counts):
            seen += count
            if seen >= wanted:
                return float(2.0 ** (LOWEST_OCTAVE + (bucket + 1) / BUCKETS_PER_OCTAVE))
        return math.inf


@dataclass(frozen=True, slots=True)
class Measured:
    """`base_s` is the least time of an answer, `pair_s` what each pair adds; both are moving averages.

    `share` is the part of the layer calls that the worker takes part in: below 1 after a failure, growing with success.
    """

    base_s: float = 0.0
    pair_s: float = UNKNOWN_PAIR_S
    n_answers: int = 0
    n_pairs_under_way: int = 0
    n_bytes_under_way: int = 0
    share: float = 1.0
    ratios: RatioHistogram = RatioHistogram()

    def expected_s(self, n_pairs: float) -> float:
        """Return the seconds until `n_pairs` more are answered, after all that is under way."""
        return self.base_s + self.pair_s * (self.n_pairs_under_way + n_pairs)

    def after_sent(self, n_pairs: int, n_bytes: int) -> Measured:
        """Return the value after a dispatch was sent."""
        return replace(
            self,
            n_pairs_under_way=self.n_pairs_under_way + n_pairs,
            n_bytes_under_way=self.n_bytes_under_way + n_bytes,
        )

    def after_end(self, n_pairs: int, n_bytes: int) -> Measured:
        """Return the value after a dispatch ended, with an answer or without."""
        return self.after_sent(-n_pairs, -n_bytes)

    def after_answer(self, n_pairs_ahead: int, seconds: float, expected_s: float) -> Measured:
        """Return the value after an answer, late or not.

        `n_pairs_ahead` were under way when it was sent, its own included; `expected_s` is what was expected then.
        """
        if self.n_answers == 0:
            return replace(self, base_s=seconds, n_answers=1)
        risen = self.base_s + BASE_RISE * (seconds - self.base_s)
        base_s = min(seconds, risen)
        beyond = (seconds - base_s) / max(n_pairs_ahead, 1)
        known = self.pair_s if self.n_answers > 1 else beyond
        return replace(
            self,
            base_s=base_s,
            pair_s=known + AVERAGE_WEIGHT * (beyond - known),
            n_answers=self.n_answers + 1,
            ratios=self.ratios.with_ratio(seconds / max(expected_s, 1e-9)),
        )


UNMEASURED = Measured()


class WorkerMeter:
    """Measures one worker. The engine's thread and the transport's may call it; it knows neither edges nor health."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._measured = UNMEASURED

    @property
    def measured(self) -> Measured:
        """The worker's speed now; never waits for the lock."""
        return self._measured

    def start(self, n_pairs: int, n_bytes: int) -> Callable[[Future[Any]], None]:
        """Count a dispatch; returns a callable to call when it ends. Only a result counts as an answer.

        Call this before the dispatch is sent: on a busy machine the answer may arrive before the sending thread runs
        again, and an answer that seems to take no time would make all later deadlines too short.
        """
        with self._lock:
            expected_s = self._measured.expected_s(n_pairs)
            self._measured = self._measured.after_sent(n_pairs, n_bytes)
            n_pairs_ahead = self._measured.n_pairs_under_way
        sent_at = self._clock()

        def stop(done: Future[Any]) -> None:
            seconds = self._clock() - sent_at
            with self._lock:
                self._measured = self._measured.after_end(n_pairs, n_bytes)
                if not done.cancelled() and done.exception() is None:
                    self._measured = self._measured.after_answer(n_pairs_ahead, seconds, expected_s)

        return stop
