"""The reply of /v1/requests/{id}/trace: where the last tokens of an answer were computed, for the key that asked.

Called by `api`. Who asks for another key's request hears what he would hear if there were none.
"""

from __future__ import annotations

from typing import Any

from backbone.api.errors import ApiError
from backbone.api.swarm.records import owned_record
from backbone.api.swarm.world import swarm


async def trace_reply(given_id: str, key_id: str) -> dict[str, Any]:
    """The reply's body. Raises ApiError 404 when there is no record, or no trace of it any more."""
    record = await owned_record(given_id, key_id)
    trace = await swarm().trace(record.request_id)
    if trace is None:
        message = "there is no trace of this request: it ended over an hour ago, made no token, or traces are not kept"
        raise ApiError(404, "trace_not_found", message, param="id")
    return {
        "id": record.request_id,
        "object": "request.trace",
        "first_token": trace.first_token,
        "layers": list(trace.layers),
        "sources": [{"kind": source.kind, "worker": source.worker} for source in trace.sources],
        "tokens": [[_counted(layer) for layer in token] for token in trace.tokens()],
    }


def _counted(layer: tuple[int, ...]) -> list[tuple[int, int]]:
    """The sources that computed something: most of a large swarm's workers did nothing for this token."""
    return [(source, n) for source, n in enumerate(layer) if n]
