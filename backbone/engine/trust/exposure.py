"""Which requests used answers that nobody had confirmed, by worker: so that a later proof of a lie finds them all.

`guard` notes each use and flags after a lie; whoever records a request asks whether it is flagged. Bounded: the
oldest requests are forgotten first, and that something was forgotten is said.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

MAX_REQUESTS = 16_384


@dataclass(frozen=True, slots=True)
class Flagged:
    """What a proven lie touches. Unless `is_complete`, requests older than those remembered may be touched too."""

    worker_id: str
    evidence_id: str
    request_ids: tuple[str, ...]
    is_complete: bool


class ExposureBook:
    """The last requests, each with the workers whose unconfirmed answers it used. Safe to use from several threads.

    One right sample says nothing about the answers before it, so it forgives none of them: a request stays exposed to
    a worker for as long as it is remembered.
    """

    def __init__(self, max_requests: int = MAX_REQUESTS) -> None:
        self._max_requests = max_requests
        self._lock = threading.Lock()
        self._workers: OrderedDict[str, set[str]] = OrderedDict()
        self._evidence: OrderedDict[str, dict[str, str]] = OrderedDict()  # of flagged requests: id, and whose lie
        self._n_forgotten = 0

    def note(self, worker_id: str, request_ids: Iterable[str]) -> None:
        """Some requests used an unconfirmed answer of a worker."""
        with self._lock:
            for request_id in request_ids:
                self._workers.setdefault(request_id, set()).add(worker_id)
            while len(self._workers) > self._max_requests:
                self._workers.popitem(last=False)
                self._n_forgotten += 1

    def flag(self, worker_id: str, evidence_id: str) -> Flagged:
        """Mark all requests that used the worker's unconfirmed answers."""
        with self._lock:
            found = tuple(request for request, workers in self._workers.items() if worker_id in workers)
            for request_id in found:
                self._evidence.setdefault(request_id, {})[evidence_id] = worker_id
            while len(self._evidence) > self._max_requests:
                self._evidence.popitem(last=False)
            return Flagged(worker_id, evidence_id, found, self._n_forgotten == 0)

    def evidence_of(self, request_id: str) -> tuple[str, ...]:
        """Why a request is flagged: ids of evidence; empty when it is not."""
        return tuple(sorted(self.flags_of(request_id)))

    def flags_of(self, request_id: str) -> dict[str, str]:
        """Why a request is flagged: the worker that lied, by the id of the evidence; empty when it is not."""
        with self._lock:
            return dict(self._evidence.get(request_id, {}))

    def unconfirmed_workers(self, request_id: str) -> tuple[str, ...]:
        """Whose unconfirmed answers a request used: to be kept in its record."""
        with self._lock:
            return tuple(sorted(self._workers.get(request_id, ())))
