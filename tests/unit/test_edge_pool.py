"""Addresses of workers, and a pool whose workers cannot be had."""

from __future__ import annotations

import numpy as np
import pytest

from backbone.engine.swarm.edge_pool import EdgePool, WorkerAddress
from kvasir.errors import ConfigError, EdgeError, EdgeTimeout
from kvasir.kernels.api import RowFormat
from kvasir.relay.directory import FixedDirectory
from kvasir.wire.frames import Hello, Role
from kvasir.wire.split import ExpertCall

HELLO = Hello(Role.BACKBONE, "0" * 64, "1" * 64, "kx1")
NOBODY = "127.0.0.1:9"  # the discard port: nothing listens there
NO_PAIRS = np.zeros(0, np.int32)
EMPTY = ExpertCall(0, np.zeros((0, 261), np.uint8), RowFormat.KX1, NO_PAIRS, NO_PAIRS)


@pytest.mark.parametrize("text", ["127.0.0.1:7401", "worker.example:1", "[::1]:65535"])
def test_an_address_reads_back_as_it_was_written(text: str) -> None:
    assert str(WorkerAddress.parse(text)) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "host:-1"])
def test_what_is_no_address_is_shown(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT") as raised:
        WorkerAddress.parse(text)
    assert repr(text) in str(raised.value)


def test_a_pool_without_its_workers_says_why_and_gives_nothing_to_anybody() -> None:
    with EdgePool([WorkerAddress.parse(NOBODY)], HELLO, connect_deadline_s=5.0) as pool:
        assert "cannot be reached" in pool.problems[NOBODY]
        assert pool.live() == frozenset()
        assert pool.coverage().replicas == {}
        assert pool.bytes_moved == {NOBODY: (0, 0)}
        with pytest.raises(EdgeError, match="not connected"):
            pool.dispatch(NOBODY, EMPTY, 1.0)
        with pytest.raises(EdgeTimeout, match="was not connected within 0"):
            pool.wait_connected(NOBODY, 0.0)


def test_closing_twice_is_harmless() -> None:
    pool = EdgePool([], HELLO)
    pool.start()
    pool.close()
    pool.close()


def test_a_worker_that_left_its_relay_is_an_edge_error_and_no_surprise() -> None:
    with EdgePool([], HELLO) as pool:
        with pytest.raises(EdgeError, match="3 at ws://x is not connected: it has left its relay"):
            pool.dispatch("3 at ws://x", EMPTY, 1.0)
        pool.report("3 at ws://x", "late")
        assert pool.live() == frozenset()


def test_relays_that_are_not_there_hold_up_nobody() -> None:
    relays = FixedDirectory({"one": "ws://127.0.0.1:9/relay"})
    with EdgePool([], HELLO, relays=relays, connect_deadline_s=5.0) as pool:
        assert pool.live() == frozenset()


def test_a_worker_at_an_address_is_no_node_and_is_called_by_its_name() -> None:
    assert EdgePool([], HELLO).node_of(NOBODY) == NOBODY
