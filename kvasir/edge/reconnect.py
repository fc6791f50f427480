"""Back-off: how long a node waits before it connects again. Pure.

Workers and backbones apply it to their relays, the agent to the site. The delay is random over nearly its whole length,
so that thousands of nodes do not return at the same moment.
"""

from __future__ import annotations

FIRST_S = 0.5
LONGEST_S = 30.0
STEADY_S = 30.0  # a connection that lasted this long counts as good
LEAST_SHARE = 0.1  # the shortest delay, as a share of the longest one after as many failures


def failures_after(n_failures: int, lasted_s: float) -> int:
    """Return the failures in a row after a connection that lasted `lasted_s` seconds (0: it was never made)."""
    return 0 if lasted_s >= STEADY_S else n_failures + 1


def reconnect_delay_s(n_failures: int, jitter: float) -> float:
    """Return the seconds to wait after `n_failures` in a row; `jitter` is random in [0, 1)."""
    longest = min(FIRST_S * 2.0 ** min(max(n_failures - 1, 0), 16), LONGEST_S)
    return longest * (LEAST_SHARE + (1 - LEAST_SHARE) * jitter)
