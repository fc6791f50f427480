"""How long a worker's answer is waited for: a pure rule over what was measured of it.

The dispatcher asks once a batch. When the time is over the batch is hedged; the answer may still come and is then
dropped, but measured, so a worker that has become slower gets more time by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from backbone.engine.swarm.measured import Measured


@dataclass(frozen=True, slots=True)
class DeadlineRule:
    """`factor` times the `quantile` of a worker's answers, between `shortest_s` and `longest_s`.

    A worker with fewer than `min_answers` has the longest time.
    """

    longest_s: float = 10.0
    shortest_s: float = 0.25
    quantile: float = 0.99
    factor: float = 2.0
    min_answers: int = 64


def patience_s(measured: Measured, n_pairs: int, rule: DeadlineRule) -> float:
    """Seconds to wait for an answer to `n_pairs` that are to be sent now."""
    if measured.n_answers < rule.min_answers:
        return rule.longest_s
    usual_s = measured.expected_s(n_pairs) * measured.ratios.quantile(rule.quantile)
    return min(max(rule.factor * usual_s, rule.shortest_s), rule.longest_s)
