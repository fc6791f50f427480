"""The record of a request that has ended: its end, the workers with unconfirmed answers, and flags for lies.

`record_keeper` writes records to Redis, the API reads them for the key that sent the request. A record has no text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from backbone.stream.events import Done, EventError, Failed, event_from_json, event_to_json
from backbone.stream.keys import FLAG_FIELD, RECORD_FIELD, record_key


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Times are in Unix seconds. `owner` is the public id of the key that sent the request."""

    request_id: str
    owner: str
    model: str
    created: float
    ended: float
    strict: bool
    end: Done | Failed
    unconfirmed: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)  # evidence id -> the worker that lied

    def to_json(self) -> str:
        """Return one line without the flags, which are separate fields of the hash and may be written at any time."""
        values = {name: getattr(self, name) for name in _PLAIN}
        return json.dumps(values | {"end": event_to_json(self.end)}, separators=(",", ":"))


_PLAIN = ("request_id", "owner", "model", "created", "ended", "strict", "unconfirmed")


def record_from_fields(fields: Mapping[str, str]) -> RequestRecord | None:
    """Parse the fields of the hash; None if the request has not ended. Raises EventError."""
    text = fields.get(RECORD_FIELD)
    if text is None:
        return None
    flags = {name.removeprefix(FLAG_FIELD): worker for name, worker in fields.items() if name.startswith(FLAG_FIELD)}
    try:
        values: dict[str, Any] = json.loads(text)
        end = event_from_json(values.pop("end"))
        unconfirmed = tuple(values.pop("unconfirmed"))
        record = RequestRecord(**values, end=end, unconfirmed=unconfirmed, flags=flags)  # type: ignore[arg-type]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EventError(f"a request's record is invalid: {text[:200]!r} ({type(error).__name__}: {error})") from error
    if not isinstance(end, Done | Failed):
        raise EventError(f"a request's record ends with {type(end).__name__}; it must be Done or Failed")
    return record


async def read_record(client: Redis, request_id: str) -> RequestRecord | None:
    """Return the record, or None. Raises Redis's errors."""
    fields: Any = await client.hgetall(record_key(request_id))  # str: the client decodes
    return record_from_fields(fields)
