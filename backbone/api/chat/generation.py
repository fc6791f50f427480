"""One body's generations: queued, read as one sequence of events, cancelled the moment that nobody listens.

Used by `chat.replies` for whole replies and by `chat.streaming` for streams. Memory is bounded: a reader that is slow
stops reading Redis. `close` may be called at any time, from any thread by `close_soon`, and any number of times.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple, Protocol

from backbone.api.chat.usage import UsageTally
from backbone.api.swarm.world import Swarm
from backbone.stream.client import QueueFull
from backbone.stream.events import Done, Event, Failed, Token, is_last
from backbone.stream.payloads import GenerationRequest
from kvasir.errors import RequestError

logger = logging.getLogger(__name__)

EVENTS_AHEAD = 256
_cancelling: set[asyncio.Task[bool]] = set()  # the loop itself holds tasks only weakly


class Happened(NamedTuple):
    """An event of request number `request`."""

    request: int
    event: Event


class Measure(Protocol):
    """Is told how a generation goes; `close` comes once."""

    def token(self) -> None: ...

    def close(self, tally: UsageTally, *, is_complete: bool) -> None: ...


class NoMeasure:
    """Measures nothing."""

    def token(self) -> None:
        """Forget it."""

    def close(self, tally: UsageTally, *, is_complete: bool) -> None:
        """Forget it."""


class Generation:
    """The requests of one body while they run."""

    def __init__(
        self,
        swarm: Swarm,
        requests: Sequence[GenerationRequest],
        *,
        patience_s: float,
        measure: Measure | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`patience_s`: after so long all is given up, whatever backbone and Redis say. Needs a running loop."""
        self.tally = UsageTally()
        self._measure = measure or NoMeasure()
        self._swarm = swarm
        self._requests = tuple(requests)
        self._clock = clock
        self._until = clock() + patience_s
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Happened] = asyncio.Queue(EVENTS_AHEAD)
        self._pumps: list[asyncio.Task[None]] = []
        self._unfinished: set[int] = set()
        self._given_up: set[int] = set()  # their last event is our own, so they may still run
        self._is_closed = False

    @property
    def n_unfinished(self) -> int:
        """How many requests have not had their last event."""
        return len(self._unfinished)

    async def start(self) -> None:
        """Queue all requests and begin to read. Raises QueueFull, RedisLost, RequestError; then none goes on."""
        try:
            for number, request in enumerate(self._requests):
                self._unfinished.add(number)  # also when it is not certain that it was queued
                try:
                    await self._swarm.enqueue(request)
                except (QueueFull, RequestError):
                    self._unfinished.discard(number)
                    raise
        except BaseException:
            self.close()
            raise
        self._pumps = [self._loop.create_task(self._pump(number)) for number in range(len(self._requests))]

    async def next(self, timeout_s: float) -> list[Happened]:
        """All events that have come, at least one, or none when the time is up. After the last event do not ask."""
        happened: list[Happened] = []
        wait_s = min(timeout_s, self._until - self._clock())
        if self._events.empty():
            try:
                async with asyncio.timeout(max(0.0, wait_s)):
                    happened.append(await self._events.get())
            except TimeoutError:
                if self._clock() >= self._until:
                    return [Happened(0, Failed(504, "deadline_exceeded", "the answer did not come in time"))]
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
        """Stop reading, and cancel what has not ended. On the loop's thread."""
        if self._is_closed:
            return
        self._is_closed = True
        self._measure.close(self.tally, is_complete=self.tally.n_done == len(self._requests))
        for pump in self._pumps:
            pump.cancel()
        for number in self._unfinished | self._given_up:
            cancelling = self._loop.create_task(self._swarm.cancel(self._requests[number].request_id))
            _cancelling.add(cancelling)
            cancelling.add_done_callback(_cancelling.discard)

    def close_soon(self) -> None:
        """`close` from any thread, also after the loop's end."""
        if not self._is_closed and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close)

    async def _pump(self, number: int) -> None:
        """Move one request's events into the common queue."""
        try:
            async with aclosing(self._swarm.read(self._requests[number].request_id)) as entries:
                async for entry in entries:
                    await self._events.put(Happened(number, entry.event))
                    if is_last(entry.event):
                        return
        except Exception:  # whatever it is, who waits for these events must hear of it
            logger.exception("reading the events of request %s failed", self._requests[number].request_id)
        self._given_up.add(number)
        failure = Failed(500, "internal_error", "the server failed to read the answer; its log says why")
        await self._events.put(Happened(number, failure))
