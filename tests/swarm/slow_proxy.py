"""A slow network for tests: a TCP proxy with a delay each way and a bound on bytes a second.

Bytes leave `one_way_s` after they came in, in order, and no faster than the bandwidth, like on a long line; what is
under way is bounded, so a sender that is too fast is held up. It never changes a byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.swarm.swarm import LoopThread

CHUNK_BYTES = 16_384
CHUNKS_UNDER_WAY = 64


class SlowProxy:
    """Listens on a free port of the loopback and forwards to one address."""

    def __init__(self, host: str, port: int, *, one_way_s: float, bytes_per_s: float) -> None:
        self._target = host, port
        self._one_way_s = one_way_s
        self._bytes_per_s = bytes_per_s
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self.port = 0
        self.n_bytes = 0  # forwarded, both ways
        self.n_links = 0  # accepted so far

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for pipe in list(self._pipes):
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    async def _accept(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        self.n_links += 1
        try:
            far, to_far = await asyncio.open_connection(*self._target)
        except OSError:
            to_near.transport.abort()
            return
        for reader, writer in ((near, to_far), (far, to_near)):
            pipe = asyncio.create_task(self._pipe(reader, writer))
            self._pipes.add(pipe)
            pipe.add_done_callback(self._pipes.discard)

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, to its end; then the other side sees the end too."""
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_UNDER_WAY)
        arriving = asyncio.create_task(self._take_in(reader, line))
        try:
            await self._let_out(line, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            arriving.cancel()
            with suppress(OSError):
                writer.close()

    async def _take_in(self, reader: asyncio.StreamReader, line: asyncio.Queue[tuple[float, bytes]]) -> None:
        clock = asyncio.get_running_loop().time
        data = b"x"
        while data:
            try:
                data = await reader.read(CHUNK_BYTES)
            except OSError:
                data = b""
            await line.put((clock() + self._one_way_s, data))

    async def _let_out(self, line: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        free_at = clock()
        while True:
            due, data = await line.get()
            free_at = max(free_at, due) + len(data) / self._bytes_per_s
            await asyncio.sleep(free_at - clock())
            if not data:
                return
            self.n_bytes += len(data)  # first: once written they may be read, and be asked about, in another thread
            writer.write(data)
            await writer.drain()


@contextmanager
def slow_proxy(host: str, port: int, *, one_way_s: float = 0.02, bytes_per_s: float = 2e6) -> Iterator[SlowProxy]:
    """A proxy in a thread of its own, for the length of a block."""
    thread = LoopThread()
    proxy = SlowProxy(host, port, one_way_s=one_way_s, bytes_per_s=bytes_per_s)
    try:
        thread.run(proxy.start())
        yield proxy
    finally:
        thread.run(proxy.close())
        thread.close()
