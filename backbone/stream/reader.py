"""Reads the events of all generations that a web process follows, with one blocking command.

`client.read` uses it. One task reads all streams and passes each stream's events to its reader; streams without events
for a while are checked by `silence`. It never restarts a generation, never skips a gap, and does not read ahead for a
slow reader.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from redis.asyncio import Redis
from redis.exceptions import RedisError

from backbone.stream.events import Event, EventError, Failed, event_from_json, is_last
from backbone.stream.keys import EVENT_FIELD, entry_id, entry_number, stream_key, wake_key
from backbone.stream.silence import ReadLimits, Silent, reasons

logger = logging.getLogger(__name__)

_BATCH = 256  # entries of one stream in a read, and the most that wait for a slow reader
_WAKE_EXPIRY_S = 60
Entries: TypeAlias = "list[tuple[str, dict[str, str]]]"


class StreamEntry(NamedTuple):
    """An event, and the id after which a dropped reader resumes. A failure made here repeats the id before it."""

    entry_id: str
    event: Event


@dataclass(slots=True, eq=False)
class _Follower:
    """One reader of one stream. `number` and `last_id` belong to the last entry from Redis."""

    request_id: str
    key: str
    number: int
    last_id: str
    began: float
    seen: float  # when it last had an event, or was checked
    ready: list[StreamEntry] = field(default_factory=list)
    has_more: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_room(self) -> bool:
        return len(self.ready) < _BATCH

    def receive(self, entry: str, fields: dict[str, str], now: float) -> Event | None:
        """Return the entry's event, or a failure after a gap; None for an entry that this reader has had."""
        wanted = self.number + 1
        if entry != entry_id(wanted):
            if entry_number(entry) < wanted:
                return None
            message = f"event {wanted} of this request is lost; the next one has the id {entry}"
            return Failed(502, "stream_gap", message)
        self.number, self.last_id, self.seen = wanted, entry, now
        try:
            return event_from_json(fields[EVENT_FIELD])
        except (EventError, KeyError) as error:
            return Failed(502, "stream_gap", f"event {wanted} of this request cannot be read: {error}")

    def put(self, last_id: str, event: Event) -> None:
        """Queue an event for the reader."""
        self.ready.append(StreamEntry(last_id, event))
        self.has_more.set()

    async def take(self) -> list[StreamEntry]:
        """Wait for entries and return all of them."""
        await self.has_more.wait()
        self.has_more.clear()
        taken, self.ready = self.ready, []
        return taken


class StreamReader:
    """Follows any number of streams with one client, in one event loop. Its task runs while there are any."""

    def __init__(
        self, client: Redis, limits: ReadLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._limits = limits or ReadLimits()
        self._clock = clock
        self._followers: set[_Follower] = set()
        self._task: asyncio.Task[None] | None = None
        self._wake_key = wake_key(uuid.uuid4().hex)
        self._last_wake = "0"
        self._wakes: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly
        self._is_blocked = False  # in a read that was not interrupted yet

    async def read(self, request_id: str, last_id: str = "0") -> AsyncGenerator[StreamEntry, None]:
        """Yield the entries after `last_id`; the last event is `Done` or `Failed`."""
        number, now = entry_number(last_id), self._clock()
        follower = _Follower(request_id, stream_key(request_id), number, last_id, now, now)
        self._followers.add(follower)
        self._attend()
        try:
            while True:
                entries = await follower.take()
                if len(entries) >= _BATCH:  # it was full, so the task has skipped it
                    self._attend()
                for entry in entries:
                    yield entry
                    if is_last(entry.event):
                        return
        finally:
            self._followers.discard(follower)

    async def close(self) -> None:
        """Stop the task; streams that are still followed fail."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail(self._followers, Failed(503, "redis_lost", "this server is stopping; send the request again"))

    def _attend(self) -> None:
        """Make the task read one stream more: start it, or interrupt its blocked read."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        elif self._is_blocked:
            self._is_blocked = False
            wake = asyncio.create_task(self._wake())
            self._wakes.add(wake)
            wake.add_done_callback(self._wakes.discard)

    async def _wake(self) -> None:
        """Write to a stream of the blocked read, so that it returns at once instead of after `block_s`."""
        try:
            commands = self._client.pipeline(transaction=False)
            commands.xadd(self._wake_key, {"": ""}, maxlen=1, approximate=False)
            commands.expire(self._wake_key, _WAKE_EXPIRY_S)
            await commands.execute()
        except RedisError as error:
            logger.warning("the blocked read of streams could not be interrupted: %s", error)

    async def _run(self) -> None:
        while self._followers:
            try:
                await self._round()
            except RedisError as error:
                failure = Failed(503, "redis_lost", f"the message store cannot be reached: {error}")
                self._fail(self._followers, failure)
            except Exception:  # any error must reach the readers
                logger.exception("reading streams failed")
                self._fail(self._followers, Failed(500, "internal_error", "the server failed to read the answer"))

    async def _round(self) -> None:
        """Read once, then check the streams that have been silent for `block_s`."""
        wanted = [follower for follower in self._followers if follower.has_room]
        block_s = self._limits.block_s
        silent_at = min((follower.seen for follower in wanted), default=self._clock()) + block_s
        self._is_blocked = True
        try:
            found = await self._next(wanted, max(1, int(1000 * (silent_at - self._clock()))))
        finally:
            self._is_blocked = False
        self._hand_out(wanted, found)
        now = self._clock()
        silent = [follower for follower in wanted if now - follower.seen >= block_s and follower in self._followers]
        if silent:
            await self._check(silent, now)

    async def _check(self, silent: list[_Follower], now: float) -> None:
        streams = [Silent(one.request_id, one.number > 0, now - one.began) for one in silent]
        found = await reasons(self._client, self._limits, streams)
        doomed = {follower: reason for follower, reason in zip(silent, found, strict=True) if reason is not None}
        for follower in silent:
            follower.seen = now
        if doomed:
            numbers = {follower: follower.number for follower in doomed}
            self._hand_out(doomed, await self._next(doomed, None))  # events since the read
            for follower, reason in doomed.items():
                if follower.number == numbers[follower]:
                    self._fail([follower], reason)

    async def _next(self, followers: Iterable[_Follower], block_ms: int | None) -> dict[str, Entries]:
        """Return new entries by stream. If two follow one stream, read from the earlier position of both."""
        places: dict[Any, Any] = {}
        for follower in followers:
            place = places.get(follower.key)
            if place is None or follower.number < entry_number(place):
                places[follower.key] = follower.last_id
        if block_ms is not None:
            places[self._wake_key] = self._last_wake
        reply: Any = await self._client.xread(places, count=_BATCH, block=block_ms)
        found = {key: _flat(entries) for key, entries in (reply.items() if isinstance(reply, dict) else reply or ())}
        woken = found.pop(self._wake_key, None)
        if woken:
            self._last_wake = woken[-1][0]
        return found

    def _hand_out(self, followers: Iterable[_Follower], found: dict[str, Entries]) -> None:
        now = self._clock()
        for follower in followers:
            for entry, fields in found.get(follower.key, ()):
                event = follower.receive(entry, fields, now) if follower in self._followers else None
                if event is not None:
                    self._put(follower, entry, event)

    def _put(self, follower: _Follower, entry: str, event: Event) -> None:
        follower.put(entry, event)
        if is_last(event):
            self._followers.discard(follower)

    def _fail(self, followers: Iterable[_Follower], failure: Failed) -> None:
        for follower in list(followers):
            self._put(follower, follower.last_id, failure)


def _flat(entries: Any) -> Entries:
    """Return XREAD's entries of one stream; newer protocol versions nest them once more."""
    if entries and isinstance(entries[0], list):
        return [entry for group in entries for entry in group]
    return list(entries)
