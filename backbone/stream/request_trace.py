"""Where the last tokens of a request's first answer were computed, as it is kept for a while after the request's end.

`record_keeper` writes traces into Redis, the API reads them for the key that asked. No text and no token is in one.
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
    """Who computed: a worker, a copy of a busy expert on the backbone, or the backbone's own replica.

    `worker` is a node's public id, or "operator" for all of the operator's own; None for the backbone.
    """

    kind: str
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """The last tokens in order, the first of them number `first_token` of the answer, from 0.

    `counts` are row-experts, u16 little-endian [n_tokens, n_layers, n_sources].
    """

    first_token: int
    layers: tuple[int, ...]
    sources: tuple[TraceSource, ...]
    counts: bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of `counts` for each token."""
        return 2 * len(self.layers) * len(self.sources)

    def tokens(self) -> Iterator[list[tuple[int, ...]]]:
        """For each token, for each layer: how many row-experts each source computed."""
        by_layer = struct.Struct(f"<{len(self.sources)}H")
        for start in range(0, len(self.counts), self.token_bytes):
            yield list(by_layer.iter_unpack(self.counts[start : start + self.token_bytes]))

    def to_text(self) -> str:
        """As it is stored. Most counts are nothing or as for the token before, so they become small."""
        values = {
            "first_token": self.first_token,
            "layers": self.layers,
            "sources": [(source.kind, source.worker) for source in self.sources],
            "counts": base64.b64encode(zlib.compress(self.counts, 1)).decode(),
        }
        return json.dumps(values, separators=(",", ":"))


def trace_from_text(text: str) -> RequestTrace:
    """Read what `to_text` wrote. Raises EventError for anything else."""
    try:
        values: dict[str, Any] = json.loads(text)
        counts = zlib.decompress(base64.b64decode(values["counts"], validate=True))
        sources = tuple(TraceSource(kind, worker) for kind, worker in values["sources"])
        trace = RequestTrace(int(values["first_token"]), tuple(map(int, values["layers"])), sources, counts)
        if not trace.token_bytes or len(counts) % trace.token_bytes:
            raise ValueError(f"{len(counts)} bytes are no counts of {trace.token_bytes} bytes a token")
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise EventError(f"a request's trace is none: {text[:80]!r} ({type(error).__name__}: {error})") from error
    return trace


async def read_trace(client: Redis, request_id: str) -> RequestTrace | None:
    """The trace, or None. Redis's errors rise."""
    text: Any = await client.hget(trace_key(request_id), TRACE_FIELD)
    return None if text is None else trace_from_text(text)
