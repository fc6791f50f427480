"""The worker of the pages, part by part, under node: what it answers backbones and asks the market."""

from __future__ import annotations

from tests.browser.node_tests import run_node_tests


def test_the_worker_behind_a_relay() -> None:
    run_node_tests("relay_worker.test.mjs", 28)


def test_the_market_client() -> None:
    run_node_tests("market_client.test.mjs", 11)


def test_the_compute_queue() -> None:
    run_node_tests("compute_queue.test.mjs", 10)
