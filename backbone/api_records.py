"""The reply of /v1/requests/{id}: a request's record for the key that sent it, and for nobody else.

Called by `api`. Who asks for another key's request hears what he would hear if there were none.
"""

from __future__ import annotations

import re
from typing import Any

from backbone.api_errors import ApiError
from backbone.api_swarm import swarm
from backbone.events import Done, Failed
from backbone.request_record import RequestRecord

_ID = re.compile(r"(?:cmpl-|chatcmpl-)?([0-9a-f]{32})")


async def record_reply(given_id: str, key_id: str) -> dict[str, Any]:
    """The reply's body. `given_id` is a reply's id, or a request's. Raises ApiError 404."""
    form = _ID.fullmatch(given_id)
    record = await swarm().record(form[1]) if form else None
    if record is None or not key_id or record.owner != key_id:
        message = "there is no record of this request: it has not ended, ended long ago, or was sent with another key"
        raise ApiError(404, "request_not_found", message, param="id")
    end = record.end
    return {
        "id": record.request_id,
        "object": "request",
        "model": record.model,
        "created": int(record.created),
        "ended": int(record.ended),
        "strict": record.strict,
        "error_code": end.code if isinstance(end, Failed) else None,
        **_answered(end),
        "flagged": bool(record.flags),
        "flags": _flags(record),
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


def _flags(record: RequestRecord) -> list[dict[str, str]]:
    return [{"worker": worker, "evidence_id": name} for name, worker in sorted(record.flags.items())]
