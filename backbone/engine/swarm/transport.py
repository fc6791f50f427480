"""The engine's view of the workers: who is live, what they hold, and a way to ask one of them.

`edge_pool` implements it over TCP and through relays, tests with plain objects. The engine never sees a socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

from backbone.engine.swarm.measured import Measured
from backbone.engine.swarm.placement import ReplicaMap
from kvasir.experts import FloatRows
from kvasir.kernels.api import EncodedRows, Pairs, RowFormat
from kvasir.kernels.sums import RowSums
from kvasir.wire.frames import SumOrder


class Transport(Protocol):
    """Sends pairs to workers. Every future ends within the deadline that was given, with a result or an EdgeError."""

    def coverage(self) -> ReplicaMap:
        """What the connected workers hold; the same object until that changes."""
        ...

    def live(self) -> frozenset[str]:
        """Workers that may be given work now: connected, and not left out after a failure."""
        ...

    def measurements(self) -> Mapping[str, Measured]:
        """What is known of the workers' speed. A worker that is missing has not been measured."""
        ...

    def dispatch(
        self,
        worker_id: str,
        layer: int,
        rows: EncodedRows,
        row_format: RowFormat,
        pair_rows: Pairs,
        pair_ids: Pairs,
        deadline_s: float,
    ) -> Future[FloatRows]:
        """Start sending at once; the future yields f32 [n_pairs, d_model]."""
        ...

    def report(self, worker_id: str, reason: str) -> None:
        """The engine could not use a worker's answer: leave the worker out for a while."""
        ...


@runtime_checkable
class SumTransport(Transport, Protocol):
    """A transport whose workers answer with sums, too."""

    def dispatch_sums(
        self,
        worker_id: str,
        layer: int,
        rows: EncodedRows,
        row_format: RowFormat,
        pair_rows: Pairs,
        pair_ids: Pairs,
        order: SumOrder,
        deadline_s: float,
    ) -> Future[RowSums]:
        """As `dispatch`; the future yields i32 [n_rows, d_model]."""
        ...


class NoWorkers:
    """A swarm of nobody: everything is computed by the backbone's own replica."""

    def coverage(self) -> ReplicaMap:
        """Nothing is covered."""
        return ReplicaMap({})

    def live(self) -> frozenset[str]:
        """Nobody is live."""
        return frozenset()

    def measurements(self) -> Mapping[str, Measured]:
        """Nobody was measured."""
        return {}

    def dispatch(
        self,
        worker_id: str,
        layer: int,
        rows: EncodedRows,
        row_format: RowFormat,
        pair_rows: Pairs,
        pair_ids: Pairs,
        deadline_s: float,
    ) -> Future[FloatRows]:
        """Never called: placement finds no replica."""
        raise LookupError(f"there is no worker {worker_id!r}")

    def dispatch_sums(
        self,
        worker_id: str,
        layer: int,
        rows: EncodedRows,
        row_format: RowFormat,
        pair_rows: Pairs,
        pair_ids: Pairs,
        order: SumOrder,
        deadline_s: float,
    ) -> Future[RowSums]:
        """Never called either."""
        raise LookupError(f"there is no worker {worker_id!r}")

    def report(self, worker_id: str, reason: str) -> None:
        """Never called."""
        raise LookupError(f"there is no worker {worker_id!r}")
