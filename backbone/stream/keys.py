"""Names, expiry times and bounds of the keys that requests and backbones have in Redis.

`client` (the web side) and the backbone's writers use them.
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
KEEP_S = 300  # a stream, after its last event
CLAIM_MARGIN_S = 3600  # a claim outlives its request, so that a late redelivery still finds it
MAX_EVENTS = 16384  # of one stream
RECORD_KEEP_S = 7 * 86_400  # a request's record, after its end or its last flag
MAX_RECORDS = 100_000  # beyond it the oldest are deleted
RECORD_FIELD = "record"
FLAG_FIELD = "flag:"  # followed by the evidence's id; the value is the worker
TRACE_KEEP_S = 3600  # a request's trace, after its end
MAX_TRACES = 1000  # beyond it the oldest are deleted
TRACE_FIELD = "trace"


def stream_key(request_id: str) -> str:
    """Return the key of a request's stream of events."""
    return f"gen:{request_id}"


def queued_key(request_id: str) -> str:
    """Return the key that exists while a request may be on the queue, so that a reader notices a lost one."""
    return f"gen:{request_id}:queued"


def owner_key(request_id: str) -> str:
    """Return the key that holds the backbone which claimed a request."""
    return f"gen:{request_id}:owner"


def cancelled_key(request_id: str) -> str:
    """Return the key that exists if a request was cancelled, perhaps before a backbone claimed it."""
    return f"gen:{request_id}:cancelled"


def lease_key(backbone_id: str) -> str:
    """Return the key that exists while a backbone is alive."""
    return f"alive:{backbone_id}"


def stats_key(backbone_id: str) -> str:
    """Return the key of a backbone's counters."""
    return f"stats:{backbone_id}"


def model_key(name: str) -> str:
    """Return the key of a served model's entry."""
    return f"models:{name}"


def wake_key(reader_id: str) -> str:
    """Return the key of the stream that interrupts the blocked read of a web process."""
    return f"wake:{reader_id}"


def record_key(request_id: str) -> str:
    """Return the key of a hash with the record of a request that has ended."""
    return f"record:{request_id}"


def trace_key(request_id: str) -> str:
    """Return the key of a hash with the trace of a request that has ended."""
    return f"trace:{request_id}"


TRACES = "traces"  # a sorted set: ids of requests that have, or had, a trace, by their end
RECORDS = "records"  # a sorted set: ids of requests that have, or had, a record, by their end


def entry_id(number: int) -> str:
    """Return the id of event `number`, from 1. Ids are consecutive, to reveal gaps and refuse repetitions."""
    return f"{number}-0"


def entry_number(entry: str) -> int:
    """Return the number of an entry id; 0 for "0", the beginning. Raises ValueError for an invalid id."""
    first, _, second = entry.partition("-")
    if second not in {"", "0"} or not first.isascii() or not first.isdigit():
        raise ValueError(f"{entry!r} is not an id of this stream: ids are NUMBER-0")
    return int(first)
