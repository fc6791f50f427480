"""One reader of one generation's stream: events in order, and what it means when none come.

Used by `stream.read`. When a stream is silent the reader looks who took the request and whether that backbone's lease
still stands. It never restarts a generation, and never passes over a gap.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from redis.asyncio import Redis
from redis.exceptions import RedisError

from backbone.events import Event, EventError, Failed, event_from_json, is_last
from backbone.stream_keys import BACKBONES, EVENT_FIELD, entry_number, lease_key, owner_key, queued_key, stream_key

_BATCH = 256
Entries: TypeAlias = "list[tuple[str, dict[str, str]]]"


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Seconds. `block_s`: how long one read waits before the lease is looked at."""

    queue_wait_s: float = 120.0
    no_backbone_s: float = 10.0
    block_s: float = 1.0


class StreamReader:
    """Reads streams over one client; holds nothing between calls."""

    def __init__(
        self, client: Redis, limits: ReadLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._limits = limits or ReadLimits()
        self._clock = clock

    async def read(self, request_id: str, last_id: str = "0") -> AsyncGenerator[tuple[str, Event], None]:
        """(entry id, event) of everything after `last_id`; the last event is `Done` or `Failed`."""
        number = entry_number(last_id)
        began = self._clock()
        try:
            while True:
                entries = await self._next(request_id, last_id, self._limits.block_s)
                if not entries:
                    problem = await self._silence(request_id, number > 0, self._clock() - began)
                    if problem is None:
                        continue
                    entries = await self._next(request_id, last_id, None)  # what came between read and look
                    if not entries:
                        yield last_id, problem
                        return
                for entry_id, fields in entries:
                    event = _checked(entry_id, number + 1, fields)
                    number += 1
                    last_id = entry_id
                    yield entry_id, event
                    if is_last(event):
                        return
        except RedisError as error:
            yield last_id, Failed(503, "redis_lost", f"the message store cannot be reached: {error}")

    async def _next(self, request_id: str, last_id: str, block_s: float | None) -> Entries:
        block_ms = None if block_s is None else int(block_s * 1000)
        reply: Any = await self._client.xread({stream_key(request_id): last_id}, count=_BATCH, block=block_ms)
        if not reply:
            return []
        entries: Any = reply[0][1] if isinstance(reply, list) else next(iter(reply.values()))
        return _flat(entries)

    async def _silence(self, request_id: str, has_begun: bool, waited_s: float) -> Failed | None:
        """Why a silent stream will stay silent, or None when there is hope."""
        owner = await self._client.get(owner_key(request_id))
        if owner is not None:
            if await self._client.exists(lease_key(str(owner))):
                return None
            return Failed(502, "backbone_lost", "the backbone that served this request went away; send it again")
        if has_begun or not await self._client.exists(queued_key(request_id)):
            return Failed(503, "redis_lost", "the message store does not know this request any more; send it again")
        if waited_s >= self._limits.queue_wait_s:
            message = f"no backbone had time for this request within {self._limits.queue_wait_s:g} s"
            return Failed(503, "queue_timeout", message)
        if waited_s >= self._limits.no_backbone_s and not await alive_backbones(self._client):
            return Failed(503, "no_backbone", "no backbone is running")
        return None


async def alive_backbones(client: Redis) -> list[str]:
    """Ids of the backbones whose lease stands, sorted."""
    members: Any = await client.smembers(BACKBONES)
    ids = sorted(members)
    if not ids:
        return []
    leases = await client.mget([lease_key(backbone_id) for backbone_id in ids])
    return [backbone_id for backbone_id, lease in zip(ids, leases, strict=True) if lease is not None]


def _flat(entries: Any) -> Entries:
    """XREAD's entries of one stream; newer protocol versions nest them once more."""
    if entries and isinstance(entries[0], list):
        return [entry for group in entries for entry in group]
    return list(entries)


def _checked(entry_id: str, wanted: int, fields: dict[str, str]) -> Event:
    """The entry's event, or the failure that it means for the reader."""
    if entry_number(entry_id) != wanted:
        return Failed(502, "stream_gap", f"event {wanted} of this request is lost; the next one has the id {entry_id}")
    try:
        return event_from_json(fields[EVENT_FIELD])
    except (EventError, KeyError) as error:
        return Failed(502, "stream_gap", f"event {wanted} of this request cannot be read: {error}")
