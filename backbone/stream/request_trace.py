"""The trace of a request: where the last tokens of its first answer were computed.

`record_keeper` writes traces to Redis, the API reads them for the key that sent the request. A trace has no text and no
tokens.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from backbone.stream.events import EventError
from backbone.stream.keys import TRACE_FIELD, trace_key

WORKER, HOT, FALLBACK = "worker", "hot", "fallback"
COUNT_TYPE = "<u2"
MOST_COUNTED = 0xFFFF


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A worker, the backbone's hot experts, or its fallback replica.

    `worker` is a node's public id, or "operator" for all workers of the operator; None for the backbone.
    """

    kind: str
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """The last tokens in order; the first of them has the index `first_token` in the answer.

    `counts` are row-experts, u16 little-endian [n_tokens, n_layers, n_sources].
    """

    first_token: int
    layers: tuple[int, ...]
    sources: tuple[TraceSource, ...]
    counts: bytes

    @property
    def token_bytes(self) -> int:
        """Return the bytes of `counts` for each token."""
        return 2 * len(self.layers) * len(self.sources)

    def tokens(self) -> Iterator[list[tuple[int, ...]]]:
        """Yield for each token, by layer, the row-experts of each source."""
        by_layer = struct.Struct(f"<{len(self.sources)}H")
        for start in range(0, len(self.counts), self.token_bytes):
            yield list(by_layer.iter_unpack(self.counts[start : start + self.token_bytes]))

    def to_text(self) -> str:
        """Return the stored form. Most counts are 0 or repeat the token before, so they compress well."""
        values = {
            "first_token": self.first_token,
            "layers": self.layers,
            "sources": [(source.kind, source.worker) for source in self.sources],
            "counts": base64.b64encode(zlib.compress(self.counts, 1)).decode(),
        }
        return json.dumps(values, separators=(",", ":"))


def trace_from_text(text: str) -> RequestTrace:
    """Parse the text of `to_text`. Raises EventError if it is invalid."""
    try:
        values: dict[str, Any] = json.loads(text)
        counts = zlib.decompress(base64.b64decode(values["counts"], validate=True))
        sources = tuple(TraceSource(kind, worker) for kind, worker in values["sources"])
        trace = RequestTrace(int(values["first_token"]), tuple(map(int, values["layers"])), sources, counts)
        if not trace.token_bytes or len(counts) % trace.token_bytes:
            raise ValueError(f"counts have {len(counts)} bytes; each token has {trace.token_bytes}")
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise EventError(f"a request's trace is invalid: {text[:80]!r} ({type(error).__name__}: {error})") from error
    return trace


async def read_trace(client: Redis, request_id: str) -> RequestTrace | None:
    """Return the trace, or None. Raises Redis's errors."""
    text: Any = await client.hget(trace_key(request_id), TRACE_FIELD)
    return None if text is None else trace_from_text(text)
