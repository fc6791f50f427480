"""What pages share, under node: numbers for people, sentences of states, keys, the CSV of rewards; the wake lock."""

from __future__ import annotations

from tests.browser.node_tests import run_node_tests


def test_the_pages_parts() -> None:
    run_node_tests("page_parts.test.mjs", 11)


def test_the_wake_lock() -> None:
    run_node_tests("wake_lock.test.mjs", 4)
