"""The playground's modules in node: streams, requests, counting of traces, the conversation."""

from __future__ import annotations

from tests.browser.node_tests import run_node_tests


def test_playground() -> None:
    run_node_tests("playground.test.mjs", 15)
