"""An event loop without waiting: when nothing is ready, its clock jumps to the next timer. And a socket to go with it.

Tests of edges and connections run on it, so that deadlines of minutes pass in no time and always in the same order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from kvasir.wire.codec import FrameDecoder, encode, join
from kvasir.wire.frames import Frame

T = TypeVar("T")


class Socket(asyncio.Transport):
    """The transport of a protocol under test. What it writes is collected, what the test sends arrives at once."""

    def __init__(self, protocol: asyncio.BaseProtocol, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.protocol = cast("asyncio.BufferedProtocol", protocol)
        self._loop = loop
        self._decoder = FrameDecoder()
        self._is_closing = False
        self.frames: list[Frame] = []  # that the protocol wrote
        self.is_stuck = False  # the other side reads nothing and never closes
        self.reads = True
        self.was_aborted = False
        self.n_unread = 0
        protocol.connection_made(self)

    def send(self, *frames: Frame) -> None:
        """Let these frames arrive."""
        self.send_bytes(b"".join(join(encode(frame)) for frame in frames))

    def send_bytes(self, data: bytes) -> None:
        """Let these bytes arrive, as many at a time as the protocol takes."""
        while data:
            space = memoryview(self.protocol.get_buffer(-1))
            n_bytes = min(len(space), len(data))
            space[:n_bytes] = data[:n_bytes]
            self.protocol.buffer_updated(n_bytes)
            data = data[n_bytes:]

    def hang_up(self) -> None:
        """The other side closes."""
        self.protocol.eof_received()
        self.abort()

    def drain(self) -> None:
        """The other side reads again, all that waited."""
        self.is_stuck, self.n_unread = False, 0
        self.protocol.resume_writing()

    # What a protocol calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.frames += self._decoder.feed(data)
        if self.is_stuck:
            self.n_unread += len(data)
            self.protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self.is_stuck:  # the other side sees the end and closes too
            self._lose()

    def close(self) -> None:
        self._lose()

    def abort(self) -> None:
        self.was_aborted = True
        self._lose()

    def _lose(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps. Connections that are opened on it are `Socket`s, listed in `sockets`."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0
        self.busy_s = 0.0
        self._real_select = self._selector.select  # type: ignore[attr-defined]
        self._selector.select = self._select  # type: ignore[attr-defined]
        self.sockets: list[Socket] = []

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time go by as if something had computed."""
        self._now += seconds
        self.busy_s += seconds

    def _select(self, timeout: float | None) -> Any:
        if timeout is None:
            raise RuntimeError("everything waits and no timer is set: the test would hang")
        self._now += timeout
        return self._real_select(0)

    async def create_connection(self, protocol_factory: Callable[[], Any], *_: Any, **__: Any) -> Any:
        protocol = protocol_factory()
        self.sockets.append(Socket(protocol, self))
        return self.sockets[-1], protocol


def run(test: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a test on a loop of its own; fails when the test leaves an error unhandled."""
    loop, unhandled = VirtualLoop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    try:
        result = loop.run_until_complete(test(loop))
        loop.run_until_complete(asyncio.sleep(3))
        assert not unhandled, unhandled
        return result
    finally:
        loop.close()


async def settle() -> None:
    """Let everything run that is ready now; no time passes."""
    for _ in range(20):
        await asyncio.sleep(0)
