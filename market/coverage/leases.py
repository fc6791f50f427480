"""Promises: a volunteer's range is chosen from one view of the market and claimed only if that view still holds.

So two volunteers never get the same gap: a promise counts as a replica until its range appears in the worker's
heartbeats or its lease ends. Called by `market.volunteer`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from kvasir.experts import ExpertRange
from kvasir.slicing.expert_ranges import merge_ranges
from market.coverage.model_facts import ModelFacts
from market.coverage.scarcity import Budget, Counts, Mask, Offer, choose, smallest_wanted_bytes
from market.coverage.store import CoverageStore, View
from market.coverage.target_store import targets_in
from market.coverage.targets import TargetBounds

MOST_TRIES = 200  # each one that fails means that another volunteer was served
LEASE_BYTES_S = 1_000_000  # the slowest download that a lease waits for
LONGEST_LEASE_S = 3600.0


class Refusal(StrEnum):
    """Why there is nothing to do."""

    AT_TARGET = "expert coverage at target"
    BUDGET_FULL = "the budget is full"
    NOTHING_FITS = "nothing that is wanted fits into the budget"
    BUSY = "too many volunteers at this moment"


@dataclass(frozen=True, slots=True)
class Lease:
    """A range promised to a worker."""

    lease_id: str
    offer: Offer
    lease_s: float


@dataclass(frozen=True, slots=True)
class NoLease:
    """Nothing was promised. `first_end_s`: when the first promise to anybody ends, if there is one."""

    refusal: Refusal
    detail: str
    first_end_s: float | None


@dataclass(frozen=True, slots=True)
class Volunteer:
    """A worker that offers room for so many bytes or experts in all, what it holds included.

    `stated` is what it says that it holds; None: what the market knows.
    """

    worker_id: str
    budget_bytes: int | None = None
    max_experts: int | None = None
    stated: tuple[ExpertRange, ...] | None = None

    def taken(self, view: View) -> tuple[ExpertRange, ...]:
        """What counts against the budget: what it holds and what it was promised before, merged."""
        held = view.held_ranges if self.stated is None else self.stated
        return merge_ranges([*held, *(pledge.range for pledge in view.pledges)])

    def room(self, taken: Iterable[ExpertRange], facts: ModelFacts) -> Budget:
        """What is left of the budget."""
        ranges = list(taken)
        n_bytes = sum(facts.range_bytes(item) for item in ranges)
        n_experts = sum(item.n_experts for item in ranges)
        return Budget(
            None if self.budget_bytes is None else self.budget_bytes - n_bytes,
            None if self.max_experts is None else self.max_experts - n_experts,
        )


def lease_seconds(n_bytes: int, base_s: float) -> float:
    """How long a promise lasts: time to get going, and the download at LEASE_BYTES_S."""
    return min(LONGEST_LEASE_S, base_s + n_bytes / LEASE_BYTES_S)


def take_lease(store: CoverageStore, volunteer: Volunteer, bounds: TargetBounds, base_s: float) -> Lease | NoLease:
    """Promise the scarcest range that fits. Raises TooManyPledgesError, and Redis's errors."""
    for attempt in range(MOST_TRIES):
        view = store.look(volunteer.worker_id)
        replicas = store.counts(view.counts) + store.counts(view.pending)
        targets = targets_in(view.targets, store.facts, bounds)
        taken = volunteer.taken(view)
        held = _mask(store.facts, (*taken, *view.held_ranges))
        room = volunteer.room(taken, store.facts)
        # equals are told apart by who asks, so that volunteers who come together go different ways
        tie = zlib.crc32(f"{volunteer.worker_id}/{attempt}".encode())
        sizes = store.facts.bytes_by_layer
        offer = choose(replicas, targets, sizes, room, held=held, tie=lambda n, tie=tie: tie % n)  # type: ignore[misc]
        if offer is None:
            return _refused(store, view, replicas, targets, held, room)
        lease_s = lease_seconds(store.facts.range_bytes(offer.range), base_s)
        lease_id = store.claim(volunteer.worker_id, offer.range, view, round(lease_s * 1000))
        if lease_id is not None:
            return Lease(lease_id, offer, lease_s)
    return NoLease(Refusal.BUSY, f"{MOST_TRIES} ranges were taken by others first", 1.0)


def _refused(store: CoverageStore, view: View, replicas: Counts, targets: Counts, held: Mask, room: Budget) -> NoLease:
    first_end_s = None if view.first_end_ms is None else view.first_end_ms / 1000
    smallest = smallest_wanted_bytes(replicas, targets, store.facts.bytes_by_layer, held)
    if smallest is None:
        detail = "every expert that this worker does not hold has as many replicas as it should"
        return NoLease(Refusal.AT_TARGET, detail, first_end_s)
    if room.n_experts is not None and room.n_experts <= 0:
        return NoLease(Refusal.BUDGET_FULL, f"{room.n_experts} experts are left of it", None)
    left = room.n_bytes or 0
    if left <= 0:
        return NoLease(Refusal.BUDGET_FULL, f"{left} bytes are left of it; the smallest expert has {smallest}", None)
    detail = f"{left} bytes are left of it; the smallest expert that is wanted has {smallest}"
    return NoLease(Refusal.NOTHING_FITS, detail, first_end_s)


def _mask(facts: ModelFacts, ranges: Iterable[ExpertRange]) -> Mask:
    held = np.zeros((facts.n_layer, facts.n_expert), np.bool_)
    for item in ranges:
        held[item.layer, item.start : item.stop] = True
    return held
