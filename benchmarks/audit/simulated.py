"""Measure how long a lying worker stays unnoticed, simulated over the production rules of trust.

Every reply of a proven worker is sampled with the share that `audit_share` gives at that moment; a sampled lie ends the
run. Only samples change anything, so the replies between two of them are drawn as one number.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from backbone.engine.trust.standing import TrustPolicy, TrustState, after_good_check, audit_share, needed

PAIRS_OF_A_REPLY = 4


@dataclass(frozen=True, slots=True)
class Detection:
    """Replies of proven workers until their first sampled lie."""

    median: float
    mean: float
    worst: int
    expected_at_least_share: float  # 1 / (lie share x least share): what a long-trusted worker can expect


def simulate(lie_share: float, n_runs: int, policy: TrustPolicy, seed: int) -> Detection:
    """Liars that were just proven, each until it is caught."""
    rng = np.random.default_rng(seed)
    replies = [_until_caught(lie_share, policy, rng) for _ in range(n_runs)]
    return Detection(
        statistics.median(replies), statistics.fmean(replies), max(replies), 1.0 / (lie_share * policy.least_share)
    )


def _until_caught(lie_share: float, policy: TrustPolicy, rng: np.random.Generator) -> int:
    state = TrustState(verified=needed(TrustState(), policy))
    n_replies = 0
    while True:
        n_replies += int(rng.geometric(audit_share(state, policy)))
        if rng.random() < lie_share:
            return n_replies
        state = after_good_check(state, PAIRS_OF_A_REPLY)
