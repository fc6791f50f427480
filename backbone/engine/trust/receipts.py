"""Receipts of workers' row-experts: verified ones, which are paid, and unpaid ones with the reason.

`guard` adds confirmed and unconfirmed work and the outcome of checks; the backbone process takes receipts with `drain`.
TrafficCounter counts how often the router calls each expert. Nothing here knows money, SQL or Redis.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvasir.experts import ExpertRange

DAY_S = 86_400
UNCHECKED = "the backbone stopped before its next check"


@dataclass(frozen=True, slots=True)
class Receipt:
    """Row-experts that a node computed for one expert range on one day."""

    node_id: str
    fingerprint: str
    layer: int
    start: int
    stop: int
    row_experts: int
    at: float  # unix seconds of the last of them
    reason: str = ""  # why it is not paid

    @property
    def verified(self) -> bool:
        """Return whether it is paid."""
        return not self.reason


@dataclass(slots=True)
class _Pending:
    """A node's work that waits for a check, in pieces that end where a sample was taken."""

    pieces: list[tuple[int, Counter[ExpertRange]]] = field(default_factory=list)  # with the sample's number
    open: Counter[ExpertRange] = field(default_factory=Counter)


class ReceiptBook:
    """Row-experts by node, range, day and outcome. Thread-safe.

    Work is verified when it was confirmed itself, or when a later check of the same node came out right. If the process
    is killed, workers lose the pay for pending work: at most what they did since their last good check.
    """

    def __init__(self, fingerprint: str) -> None:
        """`fingerprint` is the model's."""
        self._fingerprint = fingerprint
        self._lock = threading.Lock()
        self._settled: dict[tuple[str, ExpertRange, int, str], tuple[int, float]] = {}
        self._pending: dict[str, _Pending] = {}

    def add_verified(self, node_id: str, work: Counter[ExpertRange], at: float) -> None:
        """Add confirmed work."""
        with self._lock:
            self._settle(node_id, work, at, "")

    def add_unpaid(self, node_id: str, work: Counter[ExpertRange], at: float, reason: str) -> None:
        """Add confirmed work of a node that is not paid, with the reason."""
        with self._lock:
            self._settle(node_id, work, at, reason)

    def add_pending(self, node_id: str, work: Counter[ExpertRange]) -> None:
        """Add work that was used unconfirmed."""
        with self._lock:
            self._pending.setdefault(node_id, _Pending()).open.update(work)

    def cut(self, node_id: str, number: int) -> None:
        """Note that the sample with this number was taken of the node's last answer; numbers grow."""
        with self._lock:
            pending = self._pending.setdefault(node_id, _Pending())
            pending.pieces.append((number, pending.open))
            pending.open = Counter()

    def vouch(self, node_id: str, number: int, at: float) -> None:
        """Verify all work up to the sample with this number, which was right."""
        with self._lock:
            pending = self._pending.get(node_id)
            while pending is not None and pending.pieces and pending.pieces[0][0] <= number:
                self._settle(node_id, pending.pieces.pop(0)[1], at, "")

    def withhold(self, node_id: str, at: float, reason: str) -> int:
        """Leave all work of a node since its last good check unpaid, after a lie; return its row-experts."""
        with self._lock:
            pending = self._pending.pop(node_id, _Pending())
            work = sum((piece for _, piece in pending.pieces), pending.open)
            self._settle(node_id, work, at, reason)
            return work.total()

    def give_up(self, at: float) -> None:
        """Leave all pending work unpaid, as the process stops."""
        for node_id in list(self._pending):
            self.withhold(node_id, at, UNCHECKED)

    def n_pending(self, node_id: str) -> int:
        """Return the row-experts that wait for a check."""
        with self._lock:
            pending = self._pending.get(node_id, _Pending())
            return pending.open.total() + sum(piece.total() for _, piece in pending.pieces)

    def drain(self) -> tuple[Receipt, ...]:
        """Return the receipts of all work that was settled since the last call."""
        with self._lock:
            settled, self._settled = self._settled, {}
        return tuple(
            Receipt(node_id, self._fingerprint, held.layer, held.start, held.stop, count, at, reason)
            for (node_id, held, _, reason), (count, at) in settled.items()
        )

    def _settle(self, node_id: str, work: Counter[ExpertRange], at: float, reason: str) -> None:
        for held, n_pairs in work.items():
            key = node_id, held, int(at // DAY_S), reason
            before, last_at = self._settled.get(key, (0, at))
            self._settled[key] = before + n_pairs, max(last_at, at)


def work_by_range(held: Iterable[ExpertRange], layer: int, expert_ids: npt.NDArray[np.int32]) -> Counter[ExpertRange]:
    """Count pairs by the held range of their expert; an expert in no range counts as a range of its own."""
    ranges = [part for part in held if part.layer == layer]
    if len(ranges) == 1:
        return Counter({ranges[0]: len(expert_ids)})
    work: Counter[ExpertRange] = Counter()
    for expert_id in expert_ids.tolist():
        found = next((part for part in ranges if part.start <= expert_id < part.stop), None)
        work[found or ExpertRange(layer, expert_id, expert_id + 1)] += 1
    return work


class TrafficCounter:
    """Counts of the router's calls of each expert. Thread-safe."""

    def __init__(self, n_layer: int, n_expert: int) -> None:
        self._lock = threading.Lock()
        self._counts = np.zeros((n_layer, n_expert), np.int64)

    def add(self, layer: int, expert_ids: npt.NDArray[np.int32]) -> None:
        """Count a layer's routed pairs, of any shape."""
        counts = np.bincount(expert_ids.reshape(-1), minlength=self._counts.shape[1])
        with self._lock:
            self._counts[layer] += counts

    def take(self) -> npt.NDArray[np.int64]:
        """Return the calls by layer and expert since the last time: int64 [n_layer, n_expert]."""
        with self._lock:
            taken, self._counts = self._counts, np.zeros_like(self._counts)
        return taken
