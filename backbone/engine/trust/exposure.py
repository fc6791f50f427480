"""The requests that used unconfirmed answers, by worker, so that a later proof of a lie finds them all.

`guard` notes each use and flags requests after a lie; a request's record shows whether it is flagged. Memory is
bounded: the oldest requests are dropped first, and `Flagged.is_complete` tells whether any were.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

MAX_REQUESTS = 16_384


@dataclass(frozen=True, slots=True)
class Flagged:
    """The requests that a proven lie affects. Unless `is_complete`, older requests may be affected too."""

    worker_id: str
    evidence_id: str
    request_ids: tuple[str, ...]
    is_complete: bool


class ExposureBook:
    """The last requests, each with the workers whose unconfirmed answers it used. Thread-safe.

    A right sample proves nothing about the answers before it, so a request stays exposed to a worker for as long as it
    is remembered.
    """

    def __init__(self, max_requests: int = MAX_REQUESTS) -> None:
        self._max_requests = max_requests
        self._lock = threading.Lock()
        self._workers: OrderedDict[str, set[str]] = OrderedDict()
        self._evidence: OrderedDict[str, dict[str, str]] = (
            OrderedDict()
        )  # of flagged requests: the worker that lied, by evidence id
        self._n_forgotten = 0

    def note(self, worker_id: str, request_ids: Iterable[str]) -> None:
        """Note that some requests used an unconfirmed answer of a worker."""
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
        """Return the ids of the evidence for which a request is flagged."""
        return tuple(sorted(self.flags_of(request_id)))

    def flags_of(self, request_id: str) -> dict[str, str]:
        """Return the workers whose lies a request is flagged for, by the id of the evidence."""
        with self._lock:
            return dict(self._evidence.get(request_id, {}))

    def unconfirmed_workers(self, request_id: str) -> tuple[str, ...]:
        """Return the workers whose unconfirmed answers a request used, for its record."""
        with self._lock:
            return tuple(sorted(self._workers.get(request_id, ())))
