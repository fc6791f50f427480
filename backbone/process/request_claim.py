"""Claims of requests in Redis: each request is generated at most once, even if the queue delivers it again."""

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

_REDELIVERED = Failed(502, "backbone_lost", "the backbone that took this request has stopped; send it again")


class Claim(Enum):
    """The result of claiming a request."""

    OURS = "this backbone owns the request"
    CANCELLED = "this backbone owns the request, which was cancelled while it waited"
    TAKEN = "the request was claimed before and must not be generated"


def claim(client: Redis, request_id: str, backbone_id: str, deadline_s: float) -> Claim:
    """Claim a request in one atomic step. Raises Redis's errors."""
    commands = client.pipeline(transaction=True)
    commands.set(owner_key(request_id), backbone_id, nx=True, ex=int(deadline_s) + CLAIM_MARGIN_S)
    commands.get(cancelled_key(request_id))
    is_owner, cancelled = commands.execute()
    if not is_owner:
        return Claim.TAKEN
    return Claim.OURS if cancelled is None else Claim.CANCELLED


def refuse_redelivery(client: Redis, request_id: str, backbone_id: str) -> bool:
    """End the stream of a request that was delivered again, unless another live backbone owns it.

    Not to be called for a request that runs here. Return True if an error was written. Raises Redis's errors.
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
    logger.error("request %s was delivered again after %s had claimed it: refused", request_id, owner)
    fields: Any = {EVENT_FIELD: event_to_json(_REDELIVERED)}
    client.xadd(stream_key(request_id), fields, id=entry_id(number + 1))
    client.expire(stream_key(request_id), KEEP_S)
    return True
