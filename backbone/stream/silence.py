"""Why streams are silent: looked up in Redis for all of them together, in two or three commands.

`reader` calls it, and checks for events that arrived in the meantime. It never writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from backbone.stream.events import Failed
from backbone.stream.keys import BACKBONES, lease_key, owner_key, queued_key

_BACKBONE_LOST = Failed(502, "backbone_lost", "the backbone that served this request has stopped; send it again")
_UNKNOWN = Failed(503, "redis_lost", "the message store has lost this request; send it again")
_NO_BACKBONE = Failed(503, "no_backbone", "no backbone is running")


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Times in seconds. After `block_s` of silence the lease of a stream's owner is checked."""

    queue_wait_s: float = 120.0
    no_backbone_s: float = 10.0
    block_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Silent:
    """A silent stream: whether it had an event before, and how long its reader has waited."""

    request_id: str
    has_begun: bool
    waited_s: float


async def reasons(client: Redis, limits: ReadLimits, streams: Sequence[Silent]) -> list[Failed | None]:
    """Return for each stream why it will stay silent, or None if events may follow. Raises Redis's errors."""
    if not streams:
        return []
    owners: Any = await client.mget([owner_key(stream.request_id) for stream in streams])
    # A lease shows that the owner is alive; a request without an owner must still be on the queue.
    signs: Any = await client.mget(
        [
            queued_key(stream.request_id) if owner is None else lease_key(str(owner))
            for stream, owner in zip(streams, owners, strict=True)
        ]
    )
    longest_s = max(stream.waited_s for stream in streams)
    is_deserted = longest_s >= limits.no_backbone_s and None in owners and not await alive_backbones(client)
    return [
        _reason(limits, stream, has_owner=owner is not None, has_sign=sign is not None, is_deserted=is_deserted)
        for stream, owner, sign in zip(streams, owners, signs, strict=True)
    ]


def _reason(limits: ReadLimits, stream: Silent, *, has_owner: bool, has_sign: bool, is_deserted: bool) -> Failed | None:
    if has_owner:
        return None if has_sign else _BACKBONE_LOST
    if stream.has_begun or not has_sign:
        return _UNKNOWN
    if stream.waited_s >= limits.queue_wait_s:
        message = f"no backbone took this request within {limits.queue_wait_s:g} s"
        return Failed(503, "queue_timeout", message)
    if stream.waited_s >= limits.no_backbone_s and is_deserted:
        return _NO_BACKBONE
    return None


async def alive_backbones(client: Redis) -> list[str]:
    """Return the ids of backbones with a valid lease, sorted."""
    members: Any = await client.smembers(BACKBONES)
    ids = sorted(members)
    if not ids:
        return []
    leases = await client.mget([lease_key(backbone_id) for backbone_id in ids])
    return [backbone_id for backbone_id, lease in zip(ids, leases, strict=True) if lease is not None]
