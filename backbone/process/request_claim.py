"""Taking a request so that it is generated at most once, whatever the queue delivers how often."""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any

from redis import Redis

from backbone.stream.events import EventError, Failed, event_from_json, event_to_json, is_last
from backbone.stream.keys import (
    CLAIM_MARGIN_S,
    EVENT_FIELD,
    KEEP_S,
    cancelled_key,
    entry_id,
    entry_number,
    lease_key,
    owner_key,
    stream_key,
)

logger = logging.getLogger(__name__)

_REDELIVERED = Failed(502, "backbone_lost", "the backbone that took this request went away; send it again")


class Claim(Enum):
    """What became of taking a request."""

    OURS = "ours"
    CANCELLED = "ours, but it was cancelled while it waited"
    TAKEN = "somebody took it before: it must not be generated"


def claim(client: Redis, request_id: str, backbone_id: str, deadline_s: float) -> Claim:
    """Become the owner in one atomic step, or find out that there was one. Errors of the client rise."""
    commands = client.pipeline(transaction=True)
    commands.set(owner_key(request_id), backbone_id, nx=True, ex=int(deadline_s) + CLAIM_MARGIN_S)
    commands.get(cancelled_key(request_id))
    is_owner, cancelled = commands.execute()
    if not is_owner:
        return Claim.TAKEN
    return Claim.OURS if cancelled is None else Claim.CANCELLED


def refuse_redelivery(client: Redis, request_id: str, backbone_id: str) -> bool:
    """End the stream of a request that came a second time, unless another backbone that lives took it.

    Not to be called for a request that runs here. True when an error was written. Errors of the client rise.
    """
    owner: Any = client.get(owner_key(request_id))
    if owner not in {None, backbone_id} and client.exists(lease_key(str(owner))):
        logger.warning("request %s was delivered again while %s serves it: ignored", request_id, owner)
        return False
    last: Any = client.xrevrange(stream_key(request_id), count=1)
    number = 0
    if last:
        number = entry_number(last[0][0])
        try:
            if is_last(event_from_json(last[0][1][EVENT_FIELD])):
                return False
        except (EventError, KeyError):
            logger.warning("the last entry of request %s cannot be read", request_id)
    logger.error("request %s was delivered again after %s had taken it: refused", request_id, owner)
    fields: Any = {EVENT_FIELD: event_to_json(_REDELIVERED)}
    client.xadd(stream_key(request_id), fields, id=entry_id(number + 1))
    client.expire(stream_key(request_id), KEEP_S)
    return True
