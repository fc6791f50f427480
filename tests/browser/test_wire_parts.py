"""The wire and the relay client of the pages, part by part, under node."""

from __future__ import annotations

from tests.browser.node_tests import run_node_tests


def test_half_floats() -> None:
    run_node_tests("half_floats.test.mjs", 5)


def test_the_relay_client() -> None:
    run_node_tests("relay_socket.test.mjs", 22)
