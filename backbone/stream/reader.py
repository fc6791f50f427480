"""All generations that a web process follows, read with one blocking command: events in order, and what silence means.

Used by `stream.read`. One task reads whatever came for any stream and hands it to that stream's reader; a stream that
says nothing for a while is looked after by `stream.silence`. It never restarts a generation, never passes over a gap,
and reads no further for a reader that is behind.
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

_BATCH = 256  # of one stream; so many entries ahead, and nothing more is read for a slow reader
_WAKE_EXPIRY_S = 60
Entries: TypeAlias = "list[tuple[str, dict[str, str]]]"


class StreamEntry(NamedTuple):
    """An event and the id after which a dropped reader resumes. A made-up error repeats the id before it."""

    entry_id: str
    event: Event


@dataclass(slots=True, eq=False)
class _Follower:
    """One reader of one stream. `number` and `last_id` are of the last entry that was put."""

    request_id: str
    key: str
    number: int
    last_id: str
    began: float
    heard: float  # when it last said something, or was looked after
    ready: list[StreamEntry] = field(default_factory=list)
    has_more: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_room(self) -> bool:
        return len(self.ready) < _BATCH

    def hear(self, entry: str, fields: dict[str, str], now: float) -> Event | None:
        """The next event, or the failure that this entry means; None for one that this reader has had."""
        wanted = self.number + 1
        if entry != entry_id(wanted):
            if entry_number(entry) < wanted:
                return None
            message = f"event {wanted} of this request is lost; the next one has the id {entry}"
            return Failed(502, "stream_gap", message)
        self.number, self.last_id, self.heard = wanted, entry, now
        try:
            return event_from_json(fields[EVENT_FIELD])
        except (EventError, KeyError) as error:
            return Failed(502, "stream_gap", f"event {wanted} of this request cannot be read: {error}")

    def put(self, last_id: str, event: Event) -> None:
        """Give it to the reader."""
        self.ready.append(StreamEntry(last_id, event))
        self.has_more.set()

    async def take(self) -> list[StreamEntry]:
        """All that came, at least one."""
        await self.has_more.wait()
        self.has_more.clear()
        taken, self.ready = self.ready, []
        return taken


class StreamReader:
    """Follows any number of streams over one client, in one event loop; its task lives while there are some."""

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
        self._is_blocked = False  # in a read that no wake was sent for

    async def read(self, request_id: str, last_id: str = "0") -> AsyncGenerator[StreamEntry, None]:
        """Everything after `last_id`; the last event is `Done` or `Failed`."""
        number, now = entry_number(last_id), self._clock()
        follower = _Follower(request_id, stream_key(request_id), number, last_id, now, now)
        self._followers.add(follower)
        self._attend()
        try:
            while True:
                entries = await follower.take()
                if len(entries) >= _BATCH:  # it had been left out
                    self._attend()
                for entry in entries:
                    yield entry
                    if is_last(entry.event):
                        return
        finally:
            self._followers.discard(follower)

    async def close(self) -> None:
        """End the task; streams that are still followed fail."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail(self._followers, Failed(503, "redis_lost", "this server is stopping; send the request again"))

    def _attend(self) -> None:
        """Let the task see that there is more to read: start it, or wake it when it is blocked."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        elif self._is_blocked:
            self._is_blocked = False
            wake = asyncio.create_task(self._wake())
            self._wakes.add(wake)
            wake.add_done_callback(self._wakes.discard)

    async def _wake(self) -> None:
        """The blocked read returns, wherever it is, for it reads this stream too. Without it, it returns by itself."""
        try:
            commands = self._client.pipeline(transaction=False)
            commands.xadd(self._wake_key, {"": ""}, maxlen=1, approximate=False)
            commands.expire(self._wake_key, _WAKE_EXPIRY_S)
            await commands.execute()
        except RedisError as error:
            logger.warning("the reader of streams could not be woken: %s", error)

    async def _run(self) -> None:
        while self._followers:
            try:
                await self._round()
            except RedisError as error:
                failure = Failed(503, "redis_lost", f"the message store cannot be reached: {error}")
                self._fail(self._followers, failure)
            except Exception:  # the readers must hear of it, whatever it is
                logger.exception("reading streams failed")
                self._fail(self._followers, Failed(500, "internal_error", "the server failed to read the answer"))

    async def _round(self) -> None:
        """Read once, then look after those that have been silent for too long."""
        wanted = [follower for follower in self._followers if follower.has_room]
        block_s = self._limits.block_s
        silent_at = min((follower.heard for follower in wanted), default=self._clock()) + block_s
        self._is_blocked = True
        try:
            found = await self._next(wanted, max(1, int(1000 * (silent_at - self._clock()))))
        finally:
            self._is_blocked = False
        self._hand_out(wanted, found)
        now = self._clock()
        silent = [follower for follower in wanted if now - follower.heard >= block_s and follower in self._followers]
        if silent:
            await self._look_after(silent, now)

    async def _look_after(self, silent: list[_Follower], now: float) -> None:
        looks = [Silent(one.request_id, one.number > 0, now - one.began) for one in silent]
        found = await reasons(self._client, self._limits, looks)
        doomed = {follower: reason for follower, reason in zip(silent, found, strict=True) if reason is not None}
        for follower in silent:
            follower.heard = now
        if doomed:
            numbers = {follower: follower.number for follower in doomed}
            self._hand_out(doomed, await self._next(doomed, None))  # what came between read and look
            for follower, reason in doomed.items():
                if follower.number == numbers[follower]:
                    self._fail([follower], reason)

    async def _next(self, followers: Iterable[_Follower], block_ms: int | None) -> dict[str, Entries]:
        """What came for these, by stream. Two may follow one stream: then it is read from the earlier one's place."""
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
                event = follower.hear(entry, fields, now) if follower in self._followers else None
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
    """XREAD's entries of one stream; newer protocol versions nest them once more."""
    if entries and isinstance(entries[0], list):
        return [entry for group in entries for entry in group]
    return list(entries)
