"""Parts of the GPU kernel's host that need no GPU: the plan of a call, and the arenas of weights."""

from __future__ import annotations

from tests.browser.node_tests import run_node_tests


def test_the_plan_of_a_call() -> None:
    run_node_tests("gpu_plan.test.mjs", 5)


def test_arenas_of_weights() -> None:
    run_node_tests("gpu_arenas.test.mjs", 5)
