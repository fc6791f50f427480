"""When a node that lost its relay dials again: a pure rule.

`worker.join` and `relay.keeper` ask after every lost or failed connection. The delay is random over its whole length,
so that thousands of nodes do not come back to a relay in one moment.
"""

from __future__ import annotations

FIRST_S = 0.5
LONGEST_S = 30.0
STEADY_S = 30.0  # a connection that lasted this long counts as good
LEAST_SHARE = 0.1  # of the longest delay that is possible now


def failures_after(n_failures: int, lasted_s: float) -> int:
    """Failures in a row, now that a connection has ended after `lasted_s` seconds (0: it never was)."""
    return 0 if lasted_s >= STEADY_S else n_failures + 1


def reconnect_delay_s(n_failures: int, jitter: float) -> float:
    """Seconds to wait after `n_failures` in a row; `jitter` is random in [0, 1)."""
    longest = min(FIRST_S * 2.0 ** min(max(n_failures - 1, 0), 16), LONGEST_S)
    return longest * (LEAST_SHARE + (1 - LEAST_SHARE) * jitter)
