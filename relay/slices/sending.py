"""One exchange with a client of the slice server, and the sending of a slice within it.

Sending stops at most one piece after the client has left. When a file cannot be read to the end, the connection ends
short of its Content-Length, so that the client notices and requests the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from kvasir.errors import GGUFError
from kvasir.slicing.slice_plan import SlicePlan
from relay.slices.limits import Throttle
from relay.slices.planning import FileSpan, read_span, segments
from relay.slices.ranges import Span

PIECE_BYTES = 1 << 20  # read at once, where the server cannot send files by itself
ZERO_COPY_PIECE_BYTES = 64 << 20
ZERO_COPY = "http.response.zerocopysend"
DROP = "kvasir.response.drop"

Message = MutableMapping[str, Any]

log = logging.getLogger(__name__)


class Exchange:
    """A request and its answer, without ASGI's envelopes."""

    def __init__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        self.method: str = scope["method"]
        self.query: bytes = scope["query_string"]
        self.sends_files = ZERO_COPY in scope.get("extensions", {})
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        self._send = send
        self._can_drop = DROP in scope.get("extensions", {})
        self._leaving = asyncio.get_running_loop().create_task(self._until_left())

    @property
    def has_left(self) -> bool:
        """Whether the client is gone."""
        return self._leaving.done()

    def header(self, name: str) -> str | None:
        """Return a field of the request, or None; several of one name are joined with commas."""
        values = [value.decode("latin-1") for key, value in self._headers if key == name.encode()]
        return ", ".join(values) if values else None

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of the answer."""
        fields = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": fields})

    async def send(self, data: bytes, more: bool) -> None:
        """Send a piece of the body. Returns when the next may be sent."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def send_file(self, descriptor: int, offset: int, n_bytes: int, more: bool) -> None:
        """Have the server send a piece of an open file."""
        await self._send({"type": ZERO_COPY, "file": descriptor, "offset": offset, "count": n_bytes, "more_body": more})

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a whole answer, without its body for HEAD."""
        sized = {"content-length": str(len(body)), **headers} if status != 304 else dict(headers)
        await self.start(status, sized)
        await self.send(b"" if self.method == "HEAD" else body, more=False)

    async def answer_json(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a whole answer of JSON."""
        await self.answer(status, body, {**headers, "content-type": "application/json"})

    async def wait(self, seconds: float) -> None:
        """Wait for `seconds`, or until the client leaves."""
        await asyncio.wait([self._leaving], timeout=seconds)

    async def drop(self, error: Exception) -> None:
        """End the connection in the middle of an answer. Raises `error` when the server cannot."""
        if not self._can_drop:
            raise error
        await self._send({"type": DROP})

    def end(self) -> None:
        """Stop watching for the client's leaving."""
        self._leaving.cancel()

    async def _until_left(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def send_slice(
    exchange: Exchange,
    status: int,
    headers: Mapping[str, str],
    plan: SlicePlan,
    span: Span,
    throttle: Throttle,
) -> None:
    """Send bytes of a slice. When the model's files cannot be read any more, end the connection."""
    await exchange.start(status, headers)
    try:
        await _send_span(exchange, plan, span, throttle)
    except GGUFError as error:
        log.error("a slice ends early: %s", error)
        await exchange.drop(error)


async def _send_span(exchange: Exchange, plan: SlicePlan, span: Span, throttle: Throttle) -> None:
    loop = asyncio.get_running_loop()
    largest = ZERO_COPY_PIECE_BYTES if exchange.sends_files else PIECE_BYTES
    largest = min(largest, throttle.piece_bytes or largest)
    with ExitStack() as stack:
        files: dict[int, int] = {}
        left = span.n_bytes
        for segment in segments(plan, span.start, span.stop):
            for piece in _pieces(segment, largest):
                n_bytes = len(piece) if isinstance(piece, bytes) else piece.n_bytes
                wait_s = throttle.wait_s(n_bytes)
                if wait_s > 0:
                    await exchange.wait(wait_s)
                if exchange.has_left:
                    return
                left -= n_bytes
                if isinstance(piece, bytes):
                    await exchange.send(piece, left > 0)
                    continue
                if piece.part not in files:
                    file = await loop.run_in_executor(None, plan.open_part, piece.part)
                    files[piece.part] = stack.enter_context(file).fileno()
                descriptor = files[piece.part]
                if exchange.sends_files:
                    await exchange.send_file(descriptor, piece.offset, piece.n_bytes, left > 0)
                else:
                    data = await loop.run_in_executor(None, partial(read_span, descriptor, piece))
                    await exchange.send(data, left > 0)


def _pieces(segment: bytes | FileSpan, largest: int) -> list[bytes] | list[FileSpan]:
    if isinstance(segment, bytes):
        return [segment[start : start + largest] for start in range(0, len(segment), largest)]
    return [
        FileSpan(segment.part, segment.offset + start, min(largest, segment.n_bytes - start))
        for start in range(0, segment.n_bytes, largest)
    ]
