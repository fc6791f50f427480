"""A socket's way out against a real socket whose other end reads slowly: order, waiting, and the end."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from twisted.internet.abstract import FileDescriptor
from twisted.internet.main import CONNECTION_LOST

from relay.server.write_gate import SMALL_BYTES, WriteGate

LIMIT = 256 * 1024
LARGE = random.Random(1).randbytes(6_000_000)


class Reactor:
    """Notes who wants to write."""

    def __init__(self) -> None:
        self.is_writing = False

    def addWriter(self, writer: Any) -> None:
        self.is_writing = True

    def removeWriter(self, writer: Any) -> None:
        self.is_writing = False

    def removeReader(self, reader: Any) -> None:
        pass


class Transport(FileDescriptor):
    """Twisted's own buffers over one end of a socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self.fake_reactor = Reactor()
        super().__init__(self.fake_reactor)  # type: ignore[arg-type]
        self.socket = end
        self.connected = 1
        self.is_lost = False

    def writeSomeData(self, data: bytes) -> Any:
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return CONNECTION_LOST

    def ready(self) -> Any:
        """What the reactor calls."""
        return self.doWrite()  # type: ignore[no-untyped-call]

    def _postLoseConnection(self) -> Any:
        self.is_lost = True
        return None


@pytest.fixture
def ends() -> Iterator[tuple[Transport, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    yield Transport(ours), theirs
    ours.close()
    theirs.close()


def pump(transport: Transport, theirs: socket.socket, read: bytearray, until: Callable[[], bool]) -> None:
    """Be the reactor and the other end, until a condition holds. A condition that never does fails the test."""
    for _ in range(100_000):
        if until():
            return
        if transport.fake_reactor.is_writing:
            assert transport.ready() is None
        with suppress(BlockingIOError):
            read += theirs.recv(50_000)
    raise AssertionError(f"it never happened; {len(read)} bytes were read")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), 60)

    asyncio.run(bounded())


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_large_message_holds_up_senders_until_it_has_left_and_what_comes_later_follows_it(
    ends: tuple[Transport, socket.socket], kind: Callable[[bytes], Any]
) -> None:
    transport, theirs = ends

    async def scenario() -> None:
        gate, read = WriteGate(transport, LIMIT), bytearray()
        gate.write(b"head", kind(LARGE))
        assert 0 < gate.unsent_bytes() < len(LARGE)
        waiting = asyncio.ensure_future(gate.passed())
        transport.write(b"control")
        await asyncio.sleep(0)
        assert not waiting.done()
        pump(transport, theirs, read, lambda: len(read) > len(LARGE) // 2)
        await asyncio.sleep(0)
        assert not waiting.done()
        pump(transport, theirs, read, lambda: gate.unsent_bytes() == 0)
        await waiting
        pump(transport, theirs, read, lambda: len(read) == len(LARGE) + 11)
        assert bytes(read) == b"head" + LARGE + b"control"
        assert not transport.fake_reactor.is_writing

    run(scenario)


def test_a_large_message_waits_for_what_is_before_it(ends: tuple[Transport, socket.socket]) -> None:
    transport, theirs = ends

    async def scenario() -> None:
        gate, read = WriteGate(transport, LIMIT), bytearray()
        transport.write(b"before")
        gate.write(b"head", memoryview(LARGE))
        gate.write(b"HEAD", b"small")
        pump(transport, theirs, read, lambda: len(read) == len(LARGE) + 19)
        assert bytes(read) == b"beforehead" + LARGE + b"HEADsmall"
        await gate.passed()

    run(scenario)


@pytest.mark.parametrize("size", [0, 1, SMALL_BYTES, SMALL_BYTES + 1, 100_000])
def test_what_the_kernel_takes_at_once_leaves_at_once(ends: tuple[Transport, socket.socket], size: int) -> None:
    transport, theirs = ends

    async def scenario() -> None:
        gate, read = WriteGate(transport, LIMIT), bytearray()
        gate.write(b"head", LARGE[:size])
        assert gate.unsent_bytes() == 0
        await gate.passed()
        pump(transport, theirs, read, lambda: len(read) == size + 4)
        assert bytes(read) == b"head" + LARGE[:size]

    run(scenario)


def test_a_connection_that_ends_in_order_sends_what_is_left_first(ends: tuple[Transport, socket.socket]) -> None:
    transport, theirs = ends

    async def scenario() -> None:
        gate, read = WriteGate(transport, LIMIT), bytearray()
        gate.write(b"head", LARGE)
        transport.loseConnection()  # type: ignore[no-untyped-call]
        pump(transport, theirs, read, lambda: transport.is_lost)
        await gate.passed()
        with suppress(BlockingIOError):
            while data := theirs.recv(1_000_000):
                read += data
        assert bytes(read) == b"head" + LARGE

    run(scenario)


def test_a_connection_that_is_lost_lets_senders_go_and_forgets_the_message(
    ends: tuple[Transport, socket.socket],
) -> None:
    transport, theirs = ends

    async def scenario() -> None:
        gate = WriteGate(transport, LIMIT)
        gate.write(b"head", LARGE)
        theirs.close()
        assert transport.ready() is CONNECTION_LOST
        transport.connectionLost(None)  # type: ignore[no-untyped-call]
        await gate.passed()
        assert gate.unsent_bytes() == 0

    run(scenario)
