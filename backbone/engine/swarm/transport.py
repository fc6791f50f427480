"""The engine's view of the workers: which are live, what they hold, and a way to ask one of them.

`edge_pool` implements it over TCP and through relays, tests with plain objects. The engine never sees a socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol

from backbone.engine.swarm.measured import Measured
from backbone.engine.swarm.placement import ReplicaMap
from kvasir.wire.split import Answer, ExpertCall


class Transport(Protocol):
    """Sends calls to workers. Every future ends within the deadline that was given, with an answer or an EdgeError."""

    def coverage(self) -> ReplicaMap:
        """Return what the connected workers hold; the same object until that changes."""
        ...

    def live(self) -> frozenset[str]:
        """Return the workers that may be given work now: connected, and not left out after a failure."""
        ...

    def measurements(self) -> Mapping[str, Measured]:
        """Return what is known of the workers' speed. A worker that is missing has not been measured."""
        ...

    def node_of(self, worker_id: str) -> str:
        """Return the id of the worker's node, or `worker_id` where the worker has no node."""
        ...

    def dispatch(self, worker_id: str, call: ExpertCall, deadline_s: float) -> Future[Answer]:
        """Start sending at once; the future yields the answer. Raises EdgeError when the worker is not connected."""
        ...

    def report(self, worker_id: str, reason: str) -> None:
        """Leave a worker out for a while: its answer could not be used, for this reason."""
        ...


class NoWorkers:
    """A transport without workers: the backbone's own replica computes everything."""

    def coverage(self) -> ReplicaMap:
        """Return an empty map."""
        return ReplicaMap({})

    def live(self) -> frozenset[str]:
        """Return no worker."""
        return frozenset()

    def measurements(self) -> Mapping[str, Measured]:
        """Return no measurement."""
        return {}

    def node_of(self, worker_id: str) -> str:
        """Return the worker's own id."""
        return worker_id

    def dispatch(self, worker_id: str, call: ExpertCall, deadline_s: float) -> Future[Answer]:
        """Raise LookupError: placement finds no replica to send to."""
        raise LookupError(f"there is no worker {worker_id!r}")

    def report(self, worker_id: str, reason: str) -> None:
        """Raise LookupError."""
        raise LookupError(f"there is no worker {worker_id!r}")
