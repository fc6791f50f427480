"""Records and traces of this process's requests in Redis, and flags of workers that are later found to have lied.

`backbone_process` opens and closes requests, the event writer reports their ends, the guard reports lies. A record and
its trace are written before a reader can see the request's end. An outage of Redis never stops a generation: records
wait in a bounded queue, traces are dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from redis import Redis
from redis.exceptions import RedisError

from backbone.engine.serving.token_sources import TokenTrace
from backbone.engine.trust.exposure import ExposureBook, Flagged
from backbone.process.event_mapping import request_trace, shown_worker, shown_workers
from backbone.stream.events import Done, Event, Failed
from backbone.stream.keys import (
    FLAG_FIELD,
    MAX_RECORDS,
    MAX_TRACES,
    RECORD_FIELD,
    RECORD_KEEP_S,
    RECORDS,
    TRACE_FIELD,
    TRACE_KEEP_S,
    TRACES,
    record_key,
    trace_key,
)
from backbone.stream.payloads import GenerationRequest
from backbone.stream.request_record import RequestRecord

logger = logging.getLogger(__name__)

MAX_WAITING = 4096  # failed writes; beyond it the oldest are lost

# Write one hash and its entry in the sorted set; delete entries that are too old or too many.
_KEEP = """
redis.call('HSET', KEYS[1], unpack(ARGV, 6))
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ARGV[2] - ARGV[3])
local beyond = redis.call('ZCARD', KEYS[2]) - ARGV[4]
if beyond > 0 then
  local oldest = redis.call('ZPOPMIN', KEYS[2], beyond)
  for i = 1, #oldest, 2 do redis.call('DEL', ARGV[5] .. oldest[i]) end
end
"""

_Write = tuple[str, dict[str, str]]  # a request, and fields of its hash


class _Shelf(NamedTuple):
    """One kind of hash: its key for a request, the sorted set of all ids, and how long and how many are kept."""

    key: Callable[[str], str]
    ids_key: str
    keep_s: int
    n_most: int


class RecordKeeper:
    """May be used from several threads. Call `flush` every few seconds from a thread that may block."""

    def __init__(
        self,
        client: Redis,
        exposures: ExposureBook,
        *,
        node_of: Callable[[str], str] = str,
        max_records: int = MAX_RECORDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`node_of` returns the node of a worker in a trace; `now` returns Unix seconds."""
        self._script = client.register_script(_KEEP)
        self._exposures = exposures
        self._node_of = node_of
        self._records = _Shelf(record_key, RECORDS, RECORD_KEEP_S, max_records)
        self._traces = _Shelf(trace_key, TRACES, TRACE_KEEP_S, MAX_TRACES)
        self._now = now
        self._open: dict[str, GenerationRequest] = {}
        self._traced: dict[str, TokenTrace] = {}
        self._waiting: deque[_Write] = deque(maxlen=MAX_WAITING)
        self._lies: deque[Flagged] = deque()
        self._flushing = threading.Lock()

    def open(self, request: GenerationRequest) -> None:
        """Add a request that this process took."""
        self._open[request.request_id] = request

    def close(self, request_id: str) -> None:
        """Forget a request at the end of its task."""
        self._open.pop(request_id, None)
        self._traced.pop(request_id, None)

    def trace(self, request_id: str, trace: TokenTrace) -> None:
        """Keep the trace of an open request until its end. Does not block."""
        if request_id in self._open and trace.tokens:
            self._traced[request_id] = trace

    def end(self, ends: Sequence[tuple[str, Event]]) -> None:
        """Write the records of the requests with these last events; a failed write is repeated by `flush`."""
        for request_id, event in ends:
            request = self._open.get(request_id)
            if request is not None and isinstance(event, Done | Failed):
                trace = self._traced.pop(request_id, None)
                if trace is not None:
                    self._write(self._traces, request_id, {TRACE_FIELD: request_trace(trace, self._shown).to_text()})
                self._keep(request_id, self._fields(request, event))

    def flag(self, flagged: Flagged) -> None:
        """Queue a lie. The next `flush` flags its requests' records, those of running requests too. Does not block."""
        self._lies.append(flagged)

    def flush(self) -> None:
        """Repeat failed writes and flag the records of lies, until one write fails."""
        with self._flushing:
            while self._waiting:
                write = self._waiting.popleft()
                if not self._keep(*write):
                    return
            while self._lies:
                lie = self._lies[0]
                fields = {FLAG_FIELD + lie.evidence_id: shown_worker(lie.worker_id)}
                for number, request_id in enumerate(lie.request_ids):
                    if not self._write(self._records, request_id, fields):
                        rest = Flagged(lie.worker_id, lie.evidence_id, lie.request_ids[number:], lie.is_complete)
                        self._lies[0] = rest
                        return
                self._lies.popleft()

    def _shown(self, worker_id: str) -> str:
        return shown_worker(self._node_of(worker_id))

    def _fields(self, request: GenerationRequest, end: Done | Failed) -> dict[str, str]:
        request_id = request.request_id
        unconfirmed = shown_workers(self._exposures.unconfirmed_workers(request_id))
        record = RequestRecord(
            request_id, request.owner, request.model, request.created, self._now(), request.strict, end, unconfirmed
        )
        flags = self._exposures.flags_of(request_id)
        return {RECORD_FIELD: record.to_json()} | {FLAG_FIELD + name: shown_worker(who) for name, who in flags.items()}

    def _keep(self, request_id: str, fields: dict[str, str]) -> bool:
        is_kept = self._write(self._records, request_id, fields)
        if not is_kept:
            self._waiting.append((request_id, fields))
        return is_kept

    def _write(self, shelf: _Shelf, request_id: str, fields: Mapping[str, str]) -> bool:
        arguments: list[str | int] = [request_id, int(self._now()), shelf.keep_s, shelf.n_most, shelf.key("")]
        for name, value in fields.items():
            arguments += (name, value)
        try:
            self._script(keys=[shelf.key(request_id), shelf.ids_key], args=arguments)
        except RedisError as error:
            logger.warning("%s is not written: %s", shelf.key(request_id), error)
            return False
        return True
