"""Names of everything that the backbone keeps in Redis, in one place for writers and readers.

Used by `stream.client` (the web's side) and by the backbone's writers. It holds names and fixed times, no connection.
"""

from __future__ import annotations

TASK = "backbone.tasks.generate"
QUEUE = "backbone"
CANCEL_CHANNEL = "gen-cancel"
MODEL_NAMES = "model-names"  # a set: names that have, or had, a `models:<name>` hash
BACKBONES = "backbones"  # a set: ids that have, or had, a lease
EVENT_FIELD = "e"

LEASE_S = 3
LEASE_REFRESH_S = 1.0
STATS_EXPIRY_S = 10
MODEL_EXPIRY_S = 10
KEEP_S = 300  # a stream that nothing is written to any more
CLAIM_MARGIN_S = 3600  # a claim outlives its request, so that a late redelivery still finds it
MAX_EVENTS = 16384  # of one stream
RECORD_KEEP_S = 7 * 86_400  # a request's record, from its end or from the last lie that it knows of
MAX_RECORDS = 100_000  # then the oldest go first
RECORD_FIELD = "record"
FLAG_FIELD = "flag:"  # and the evidence's id; holds the worker
TRACE_KEEP_S = 3600  # where a request's last tokens were computed: for whoever looks at the answer
MAX_TRACES = 1000  # then the oldest go first
TRACE_FIELD = "trace"


def stream_key(request_id: str) -> str:
    """The stream of a request's events."""
    return f"gen:{request_id}"


def queued_key(request_id: str) -> str:
    """Set while the request may be on the queue, so that a reader knows a lost request from one that waits."""
    return f"gen:{request_id}:queued"


def owner_key(request_id: str) -> str:
    """Which backbone took the request."""
    return f"gen:{request_id}:owner"


def cancelled_key(request_id: str) -> str:
    """Set when the request was cancelled, perhaps before any backbone took it."""
    return f"gen:{request_id}:cancelled"


def lease_key(backbone_id: str) -> str:
    """There while the backbone lives."""
    return f"alive:{backbone_id}"


def stats_key(backbone_id: str) -> str:
    """The backbone's counters."""
    return f"stats:{backbone_id}"


def model_key(name: str) -> str:
    """What is known of a served model."""
    return f"models:{name}"


def wake_key(reader_id: str) -> str:
    """A stream that interrupts the blocked read of one web process."""
    return f"wake:{reader_id}"


def record_key(request_id: str) -> str:
    """A hash: what is kept of a request that has ended."""
    return f"record:{request_id}"


def trace_key(request_id: str) -> str:
    """A hash: where the last tokens of a request that has ended were computed."""
    return f"trace:{request_id}"


TRACES = "traces"  # a sorted set: ids of requests that have, or had, a trace, by their end
RECORDS = "records"  # a sorted set: ids of requests that have, or had, a record, by their end


def entry_id(number: int) -> str:
    """The id of a stream's event number `number`, from 1. Consecutive, so that a gap shows and a repeat is refused."""
    return f"{number}-0"


def entry_number(entry: str) -> int:
    """The number of an entry id; 0 for "0", the beginning. Raises ValueError for anything else."""
    first, _, second = entry.partition("-")
    if second not in {"", "0"} or not first.isascii() or not first.isdigit():
        raise ValueError(f"{entry!r} is no id of this stream: ids are NUMBER-0")
    return int(first)
