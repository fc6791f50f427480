"""What is known of one worker's speed: moving averages over its answers, and what is under way to it now.

Transports keep one `Measured` a worker; `replica_choice` and `deadlines` read it. Pure: every change gives a new value,
and time comes in as seconds that passed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

AVERAGE_WEIGHT = 1 / 16  # of a new answer in the moving averages
BASE_RISE = 1 / 256  # how fast the least time forgets: a network that got slower is believed in the end
UNKNOWN_PAIR_S = 1e-4  # of a worker that has not answered yet
BUCKETS_PER_OCTAVE = 4
N_BUCKETS = 40
LOWEST_OCTAVE = -2  # ratios below 1/4 share the first bucket, above 256 the last
MAX_COUNT = 1024


@dataclass(frozen=True, slots=True)
class RatioHistogram:
    """How long answers took against what was expected, in buckets a quarter of an octave wide; old ones fade."""

    counts: tuple[int, ...] = (0,) * N_BUCKETS

    def with_ratio(self, ratio: float) -> RatioHistogram:
        """One more answer; at MAX_COUNT answers all counts are halved first."""
        counts = self.counts
        if sum(counts) >= MAX_COUNT:
            counts = tuple(count // 2 for count in counts)
        octaves = math.log2(max(ratio, 2.0**LOWEST_OCTAVE)) - LOWEST_OCTAVE
        bucket = min(int(octaves * BUCKETS_PER_OCTAVE), N_BUCKETS - 1)
        return RatioHistogram((*counts[:bucket], counts[bucket] + 1, *counts[bucket + 1 :]))

    def quantile(self, share: float) -> float:
        """A ratio that at least `share` of the answers did not exceed; 1 when there is none."""
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
    """`base_s` is the least time of an answer, `pair_s` what each pair adds, both moving averages.

    `share` is the part of the layers that the worker takes part in: below 1 after a failure, growing with success.
    """

    base_s: float = 0.0
    pair_s: float = UNKNOWN_PAIR_S
    n_answers: int = 0
    n_pairs_under_way: int = 0
    n_bytes_under_way: int = 0
    share: float = 1.0
    ratios: RatioHistogram = RatioHistogram()

    def expected_s(self, n_pairs: float) -> float:
        """Seconds until `n_pairs` more would be answered, after all that is under way."""
        return self.base_s + self.pair_s * (self.n_pairs_under_way + n_pairs)

    def after_sent(self, n_pairs: int, n_bytes: int) -> Measured:
        """A dispatch is on its way."""
        return replace(
            self,
            n_pairs_under_way=self.n_pairs_under_way + n_pairs,
            n_bytes_under_way=self.n_bytes_under_way + n_bytes,
        )

    def after_end(self, n_pairs: int, n_bytes: int) -> Measured:
        """A dispatch is no longer under way, whatever became of it."""
        return self.after_sent(-n_pairs, -n_bytes)

    def after_answer(self, n_pairs_ahead: int, seconds: float, expected_s: float) -> Measured:
        """An answer came, late or not.

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
