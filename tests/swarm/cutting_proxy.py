"""A TCP proxy in a test's event loop that breaks connections after so many bytes, or changes the bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

Change = Callable[[int, bytes], bytes]  # position in the connection's answer bytes, and a piece of them


class CuttingProxy:
    """Listens on a free port of 127.0.0.1. `target` may change; connections that are open then break."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.cuts: Iterator[int] = iter(())  # answer bytes until the cut, connection by connection
        self.change: Change = lambda position, data: data
        self.n_connections = 0
        self.n_answer_bytes = 0
        self.passed: Callable[[], None] = lambda: None  # called after each piece
        self.refused: Callable[[], None] = lambda: None  # called when the target does not listen
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.break_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def break_all(self) -> None:
        """Break every open connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.n_connections += 1
        cut = next(self.cuts, None)
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            self.refused()
            return
        self._writers.add(far_writer)
        asking = asyncio.ensure_future(self._copy_requests(reader, far_writer))
        try:
            await self._copy_answers(far_reader, writer, cut)
        except (OSError, asyncio.CancelledError):
            pass  # broken by one side, or by the end of the test
        finally:
            asking.cancel()
            for each in (writer, far_writer):
                each.transport.abort()
                self._writers.discard(each)

    async def _copy_requests(self, reader: asyncio.StreamReader, far: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            far.write(data)
            await far.drain()

    async def _copy_answers(self, far: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: int | None) -> None:
        position = 0
        while data := await far.read(65_536):
            data = self.change(position, data)
            if cut is not None and position + len(data) >= cut:
                writer.write(data[: cut - position])
                await writer.drain()
                writer.write_eof()
                return
            writer.write(data)
            position += len(data)
            self.n_answer_bytes += len(data)
            await writer.drain()
            self.passed()
