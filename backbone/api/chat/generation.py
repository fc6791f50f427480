"""The requests of one body while they run: queued, read as one sequence of events, cancelled when the client leaves.

`chat.replies` reads it. Memory is bounded: a slow reader stops the reading of Redis. `close` may be called at any time
and more than once, `close_soon` from any thread too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple, Protocol

from backbone.api.chat.usage import UsageTally
from backbone.api.message_store import MessageStore
from backbone.stream.client import QueueFull
from backbone.stream.events import Done, Event, Failed, Token, is_last
from backbone.stream.payloads import GenerationRequest
from kvasir.errors import RequestError

logger = logging.getLogger(__name__)

EVENTS_AHEAD = 256
_cancelling: set[asyncio.Task[bool]] = set()  # the loop itself holds tasks only weakly


class Happened(NamedTuple):
    """An event, and the number of its request within the body."""

    request: int
    event: Event


class Measure(Protocol):
    """Counts a generation's tokens and its end; `close` is called once."""

    def token(self) -> None: ...

    def close(self, tally: UsageTally, *, is_complete: bool) -> None: ...


class NoMeasure:
    """Measures nothing."""

    def token(self) -> None:
        """Ignore it."""

    def close(self, tally: UsageTally, *, is_complete: bool) -> None:
        """Ignore it."""


class Generation:
    """The requests of one body while they run."""

    def __init__(
        self,
        store: MessageStore,
        requests: Sequence[GenerationRequest],
        *,
        patience_s: float,
        measure: Measure | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Needs a running event loop. After `patience_s` seconds the generation fails in any case."""
        self.tally = UsageTally()
        self._measure = measure or NoMeasure()
        self._store = store
        self._requests = tuple(requests)
        self._clock = clock
        self._until = clock() + patience_s
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Happened] = asyncio.Queue(EVENTS_AHEAD)
        self._pumps: list[asyncio.Task[None]] = []
        self._unfinished: set[int] = set()
        self._given_up: set[int] = set()  # their last event was made up here, so they may still run
        self._is_closed = False

    @property
    def n_unfinished(self) -> int:
        """Return the number of requests without a last event."""
        return len(self._unfinished)

    async def start(self) -> None:
        """Queue all requests and begin to read. Raises QueueFull, RedisLost or RequestError, and cancels all then."""
        try:
            for number, request in enumerate(self._requests):
                self._unfinished.add(number)  # before it is queued: an error may leave open whether it was
                try:
                    await self._store.enqueue(request)
                except (QueueFull, RequestError):
                    self._unfinished.discard(number)
                    raise
        except BaseException:
            self.close()
            raise
        self._pumps = [self._loop.create_task(self._pump(number)) for number in range(len(self._requests))]

    async def next(self, timeout_s: float) -> list[Happened]:
        """Wait for events and return all of them, or none after `timeout_s`. Not to be called after the last event."""
        happened: list[Happened] = []
        wait_s = min(timeout_s, self._until - self._clock())
        if self._events.empty():
            try:
                async with asyncio.timeout(max(0.0, wait_s)):
                    happened.append(await self._events.get())
            except TimeoutError:
                if self._clock() >= self._until:
                    return [Happened(0, Failed(504, "deadline_exceeded", "the answer was not complete in time"))]
                return []
        while not self._events.empty():
            happened.append(self._events.get_nowait())
        for number, event in happened:
            if isinstance(event, Token):
                self._measure.token()
            if is_last(event):
                self._unfinished.discard(number)
            if isinstance(event, Done):
                self.tally.add(self._requests[number].request_id, event)
        return happened

    def close(self) -> None:
        """Stop reading, and cancel requests that have not ended. Call it on the loop's thread."""
        if self._is_closed:
            return
        self._is_closed = True
        self._measure.close(self.tally, is_complete=self.tally.n_done == len(self._requests))
        for pump in self._pumps:
            pump.cancel()
        for number in self._unfinished | self._given_up:
            cancelling = self._loop.create_task(self._store.cancel(self._requests[number].request_id))
            _cancelling.add(cancelling)
            cancelling.add_done_callback(_cancelling.discard)

    def close_soon(self) -> None:
        """Call `close` from any thread, also after the end of the loop."""
        if not self._is_closed and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close)

    async def _pump(self, number: int) -> None:
        """Copy one request's events into the common queue."""
        try:
            async with aclosing(self._store.read(self._requests[number].request_id)) as entries:
                async for entry in entries:
                    await self._events.put(Happened(number, entry.event))
                    if is_last(entry.event):
                        return
        except Exception:  # any error must reach the reader of these events
            logger.exception("reading the events of request %s failed", self._requests[number].request_id)
        self._given_up.add(number)
        failure = Failed(500, "internal_error", "the server failed to read the answer; see its log")
        await self._events.put(Happened(number, failure))
