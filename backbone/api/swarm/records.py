"""The reply of /v1/requests/{id}: a request's record for the key that sent it, and for nobody else.

Called by `api`. Who asks for another key's request hears what he would hear if there were none. Besides the record's
own flags, lies that were proven since then count by SQL: the backbone that served the request may be gone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from asgiref.sync import sync_to_async

from backbone.api.errors import ApiError
from backbone.api.keys.auth import SQL_DEADLINE_S
from backbone.api.swarm.world import swarm
from backbone.stream.events import Done, Failed
from backbone.stream.request_record import RequestRecord
from market.nodes.trust_store import lies_since

_ID = re.compile(r"(?:cmpl-|chatcmpl-)?([0-9a-f]{32})")


async def owned_record(given_id: str, key_id: str) -> RequestRecord:
    """The record that this key may read. `given_id` is a reply's id, or a request's. Raises ApiError 404."""
    form = _ID.fullmatch(given_id)
    record = await swarm().record(form[1]) if form else None
    if record is None or not key_id or record.owner != key_id:
        message = "there is no record of this request: it has not ended, ended long ago, or was sent with another key"
        raise ApiError(404, "request_not_found", message, param="id")
    return record


async def record_reply(given_id: str, key_id: str) -> dict[str, Any]:
    """The reply's body. Raises ApiError 404, and 503 when SQL is slow."""
    record = await owned_record(given_id, key_id)
    end, flags = record.end, await _flags(record)
    return {
        "id": record.request_id,
        "object": "request",
        "model": record.model,
        "created": int(record.created),
        "ended": int(record.ended),
        "strict": record.strict,
        "error_code": end.code if isinstance(end, Failed) else None,
        **_answered(end),
        "flagged": bool(flags),
        "flags": [{"worker": worker, "evidence_id": name} for name, worker in sorted(flags.items())],
        "unconfirmed": list(record.unconfirmed),
    }


def _answered(end: Done | Failed) -> dict[str, Any]:
    if isinstance(end, Failed):
        return {"usage": None, "shares": None}
    usage, share = end.usage, end.kvasir
    total = usage.prompt_tokens + usage.completion_tokens
    return {
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": total,
        },
        "shares": {
            "row_experts": share.row_experts,
            "workers": share.workers,
            "hot": share.hot,
            "fallback": share.fallback,
        },
    }


async def _flags(record: RequestRecord) -> Mapping[str, str]:
    if not record.unconfirmed:
        return record.flags
    try:
        async with asyncio.timeout(SQL_DEADLINE_S):
            proven = await sync_to_async(lies_since)(record.unconfirmed, record.created)
    except TimeoutError:
        raise ApiError(503, "database_slow", "the database did not answer in time", retry_after_s=5) from None
    return {**proven, **record.flags}
