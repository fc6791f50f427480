"""Back-off of a node that has lost its relay: its bounds, and the golden cases in Python and in JavaScript."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.edge.reconnect import FIRST_S, LONGEST_S, STEADY_S, failures_after, reconnect_delay_s
from tests.browser.node_tests import run_node_tests

CASES = json.loads((Path(__file__).parents[1] / "golden" / "reconnect" / "cases.json").read_text())


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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_python_waits_as_long_as_the_golden_cases(case: dict[str, Any]) -> None:
    n_failures, found = 0, []
    for lasted_s, jitter in case["ends"]:
        n_failures = failures_after(n_failures, lasted_s)
        found.append([n_failures, reconnect_delay_s(n_failures, jitter)])
    assert found == case["waits"]


def test_javascript_waits_as_long_as_the_golden_cases() -> None:
    run_node_tests("reconnect_golden.test.mjs", 1)
