"""What pages share, under node: numbers for people, sentences of states, keys, the CSV of rewards."""

from __future__ import annotations

from tests.browser.node_tests import run_node_tests


def test_the_pages_parts() -> None:
    run_node_tests("page_parts.test.mjs", 11)
