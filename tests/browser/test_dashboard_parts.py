"""The dashboard's scripts under node: colours, words, keys, and the line to /live."""

from __future__ import annotations

from tests.browser.node_tests import run_node_tests


def test_the_dashboards_parts() -> None:
    run_node_tests("dashboard.test.mjs", 13)
