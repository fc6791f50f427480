"""When a node that lost its relay dials again."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvasir.edge.reconnect import FIRST_S, LONGEST_S, STEADY_S, failures_after, reconnect_delay_s


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_delays_are_bounded_and_spread(n_failures: int, jitter: float) -> None:
    delay = reconnect_delay_s(n_failures, jitter)
    assert 0.1 * FIRST_S <= delay <= LONGEST_S
    if jitter < 0.5:
        assert reconnect_delay_s(n_failures, jitter + 0.5) >= 1.5 * delay


def test_delays_double_with_each_failure_up_to_the_longest() -> None:
    delays = [reconnect_delay_s(n, 0.999999) for n in range(12)]
    assert delays[1] == delays[0]
    assert all(later <= 2.001 * sooner for sooner, later in pairwise(delays))
    assert delays[-1] > 0.99 * LONGEST_S


def test_only_a_connection_that_lasted_counts_as_good() -> None:
    assert failures_after(0, 0.0) == 1
    assert failures_after(4, STEADY_S - 1) == 5  # a relay that takes and drops is as bad as none
    assert failures_after(4, STEADY_S) == 0
