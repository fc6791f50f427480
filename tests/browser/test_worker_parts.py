"""The worker of the pages, part by part, under node: what it answers backbones and asks the market."""

from __future__ import annotations

from tests.browser.node_tests import run_node_tests


def test_the_worker_at_its_relay() -> None:
    run_node_tests("relay_worker.test.mjs", 7)


def test_connections() -> None:
    run_node_tests("worker_connection.test.mjs", 22)


def test_the_market_client() -> None:
    run_node_tests("market_client.test.mjs", 10)


def test_the_compute_queue() -> None:
    run_node_tests("compute_queue.test.mjs", 10)


def test_dispatches_for_sums() -> None:
    run_node_tests("worker_sums.test.mjs", 14)
