"""Replies of /v1/requests/{id} and its /trace, for the key that sent the request and for no other.

`routes` calls it. Another key gets the same error as for an unknown request. Besides the record's flags, lies that were
proven later are read from SQL, since the backbone that served the request may no longer run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from backbone.api.errors import ApiError
from backbone.api.keys.auth import ask_sql
from backbone.api.message_store import message_store
from backbone.stream.events import Done, Failed
from backbone.stream.request_record import RequestRecord
from market.nodes.trust_store import lies_since

_ID = re.compile(r"(?:cmpl-|chatcmpl-)?([0-9a-f]{32})")


async def owned_record(given_id: str, key_id: str) -> RequestRecord:
    """Return a record that this key may read. `given_id` is a reply's id or a request's. Raises ApiError 404."""
    form = _ID.fullmatch(given_id)
    record = await message_store().record(form[1]) if form else None
    if record is None or not key_id or record.owner != key_id:
        message = "there is no record of this request: it still runs, ended long ago, or was sent with another key"
        raise ApiError(404, "request_not_found", message, param="id")
    return record


async def record_reply(given_id: str, key_id: str) -> dict[str, Any]:
    """Return a record's reply. Raises ApiError 404, and 503 if SQL does not answer."""
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


async def trace_reply(given_id: str, key_id: str) -> dict[str, Any]:
    """Return a trace's reply: where the answer's last tokens were computed. Raises ApiError 404."""
    record = await owned_record(given_id, key_id)
    trace = await message_store().trace(record.request_id)
    if trace is None:
        message = "there is no trace of this request: it ended over an hour ago, made no token, or traces are not kept"
        raise ApiError(404, "trace_not_found", message, param="id")
    return {
        "id": record.request_id,
        "object": "request.trace",
        "first_token": trace.first_token,
        "layers": list(trace.layers),
        "sources": [{"kind": source.kind, "worker": source.worker} for source in trace.sources],
        "tokens": [[_nonzero(layer) for layer in token] for token in trace.tokens()],
    }


def _nonzero(layer: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return (source, count) where the count is not 0: most workers of a large swarm compute nothing for a token."""
    return [(source, n) for source, n in enumerate(layer) if n]


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
    proven = await ask_sql(lies_since, record.unconfirmed, record.created)
    return {**proven, **record.flags}
