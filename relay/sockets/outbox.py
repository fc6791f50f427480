"""The queue of records to be sent over one socket, and the task that sends them.

Each session owns one. Records are queued without waiting, so that a slow reader delays nobody else; those that have
gathered are sent as one message. The edges' credit bounds a worker's queue; for a backbone's, workers wait for `room`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from kvasir.relay.records import MAX_BUNDLE_BYTES
from kvasir.wire.header import Buffer

HIGH_WATER_BYTES = 2 * 1024 * 1024

Send = Callable[[Buffer], Awaitable[None]]


class Outbox:
    """Records in order. `run` sends them until it is cancelled or the socket fails."""

    def __init__(self, send: Send, clock: Callable[[], float], max_bundle_bytes: int = MAX_BUNDLE_BYTES) -> None:
        self._send = send
        self._clock = clock
        self._max_bundle_bytes = max_bundle_bytes
        self._records: deque[Buffer] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._is_closed = False
        self.queued_bytes = 0
        self.sending_since: float | None = None  # when the message that is being sent was begun

    @property
    def is_full(self) -> bool:
        """Whether senders should wait for `room`."""
        return self.queued_bytes > HIGH_WATER_BYTES

    def put(self, record: Buffer) -> None:
        """Queue one record, head and frame, or several that must be sent together."""
        self._records.append(record)
        self.queued_bytes += len(record)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def room(self) -> None:
        """Wait until the queue is short again, or closed."""
        while self.is_full and not self._is_closed:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    async def run(self) -> None:
        """Send what is queued until the socket closes."""
        try:
            while True:
                if not self._records:
                    self._wake = asyncio.get_running_loop().create_future()
                    await self._wake
                message = self._next_message()
                self.sending_since = self._clock()
                await self._send(message)
                self.sending_since = None
                self.queued_bytes -= len(message)
                self._make_room()
        finally:
            self.close()

    async def flush(self) -> None:
        """Wait until the queue is empty, or closed."""
        while self.queued_bytes and not self._is_closed:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    def close(self) -> None:
        """Drop what is queued, and end all waits."""
        self._is_closed = True
        self._records.clear()
        self._make_room()

    def _next_message(self) -> Buffer:
        first = self._records.popleft()
        if not self._records or len(first) >= self._max_bundle_bytes:
            return first
        parts, n_bytes = [first], len(first)
        while self._records and n_bytes + len(self._records[0]) <= self._max_bundle_bytes:
            part = self._records.popleft()
            parts.append(part)
            n_bytes += len(part)
        return b"".join(parts)

    def _make_room(self) -> None:
        if self._room is not None:
            if not self._room.done():
                self._room.set_result(None)
            self._room = None
