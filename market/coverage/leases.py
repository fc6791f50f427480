"""Leases: a volunteer's range is chosen from one view of the market and claimed only if that view still holds.

So two volunteers never get the same gap: a lease counts as a pending replica until the worker's heartbeats have its
range or it ends. `place` is the whole decision, pure; `take_lease` makes it binding in Redis. Called by
`market.coverage.participation`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from kvasir.experts import ExpertRange
from kvasir.slicing.expert_ranges import merge_ranges
from market.coverage.codec import unpack_counts, unpack_targets
from market.coverage.model_facts import ModelFacts
from market.coverage.scarcity import Budget, Choice, Mask, choose, smallest_wanted_bytes
from market.coverage.store import CoverageStore, View
from market.settings import TargetBounds

MOST_TRIES = 200  # each failed try means that another volunteer got its range
LEASE_BYTES_S = 1_000_000  # the slowest download that a lease waits for
LONGEST_LEASE_S = 3600.0


class Refusal(StrEnum):
    """Why a volunteer gets no lease."""

    AT_TARGET = "expert coverage at target"
    BUDGET_FULL = "the budget is full"
    NOTHING_FITS = "nothing that is wanted fits into the budget"
    BUSY = "too many volunteers at this moment"


@dataclass(frozen=True, slots=True)
class Lease:
    """A range granted to a worker for `lease_s` seconds."""

    lease_id: str
    choice: Choice
    lease_s: float


@dataclass(frozen=True, slots=True)
class NoLease:
    """A refusal. `first_end_s`: seconds until the first lease of any worker ends, or None."""

    refusal: Refusal
    detail: str
    first_end_s: float | None


@dataclass(frozen=True, slots=True)
class Volunteer:
    """A worker that volunteers, with its budget in bytes or experts; the ranges that it holds are part of the budget.

    `stated` are the ranges that the worker says it holds; None: those of its last heartbeat count.
    """

    worker_id: str
    budget_bytes: int | None = None
    max_experts: int | None = None
    stated: tuple[ExpertRange, ...] | None = None

    def taken(self, view: View) -> tuple[ExpertRange, ...]:
        """Return the ranges that count against the budget, merged: those held and those leased."""
        held = view.held_ranges if self.stated is None else self.stated
        return merge_ranges([*held, *(lease.range for lease in view.leases)])

    def room(self, taken: Iterable[ExpertRange], facts: ModelFacts) -> Budget:
        """Return what the ranges in `taken` leave of the budget."""
        ranges = list(taken)
        n_bytes = sum(facts.range_bytes(item) for item in ranges)
        n_experts = sum(item.n_experts for item in ranges)
        return Budget(
            None if self.budget_bytes is None else self.budget_bytes - n_bytes,
            None if self.max_experts is None else self.max_experts - n_experts,
        )


def lease_seconds(n_bytes: int, base_s: float) -> float:
    """Return the length of a lease: `base_s` to start, and the download at LEASE_BYTES_S."""
    return min(LONGEST_LEASE_S, base_s + n_bytes / LEASE_BYTES_S)


def place(facts: ModelFacts, bounds: TargetBounds, view: View, volunteer: Volunteer, attempt: int) -> Choice | NoLease:
    """Choose the range for a volunteer, or say why there is none. Pure: the same arguments give the same answer.

    Equal candidates are told apart by the worker's id and the number of the attempt, so that volunteers who come at
    the same time get different ranges.
    """
    replicas = unpack_counts(view.counts, facts) + unpack_counts(view.pending, facts)
    targets = unpack_targets(view.targets, facts, bounds)
    taken = volunteer.taken(view)
    held = _mask(facts, (*taken, *view.held_ranges))
    room = volunteer.room(taken, facts)
    tie = zlib.crc32(f"{volunteer.worker_id}/{attempt}".encode())
    choice = choose(replicas, targets, facts.bytes_by_layer, room, held=held, tie=lambda n: tie % n)
    if choice is not None:
        return choice
    first_end_s = None if view.first_end_ms is None else view.first_end_ms / 1000
    smallest = smallest_wanted_bytes(replicas, targets, facts.bytes_by_layer, held)
    if smallest is None:
        detail = "every expert that this worker does not hold is at its target"
        return NoLease(Refusal.AT_TARGET, detail, first_end_s)
    if room.n_experts is not None and room.n_experts <= 0:
        return NoLease(Refusal.BUDGET_FULL, f"{room.n_experts} experts of the budget are left", None)
    left = room.n_bytes or 0
    detail = f"{left} bytes of the budget are left; the smallest wanted expert has {smallest}"
    if left <= 0:
        return NoLease(Refusal.BUDGET_FULL, detail, None)
    return NoLease(Refusal.NOTHING_FITS, detail, first_end_s)


def take_lease(store: CoverageStore, volunteer: Volunteer, bounds: TargetBounds, base_s: float) -> Lease | NoLease:
    """Lease the scarcest range that fits to a volunteer. Raises TooManyLeasesError, and Redis's errors."""
    for attempt in range(MOST_TRIES):
        view = store.look(volunteer.worker_id)
        found = place(store.facts, bounds, view, volunteer, attempt)
        if isinstance(found, NoLease):
            return found
        lease_s = lease_seconds(store.facts.range_bytes(found.range), base_s)
        lease_id = store.claim(volunteer.worker_id, found.range, view, round(lease_s * 1000))
        if lease_id is not None:
            return Lease(lease_id, found, lease_s)
    return NoLease(Refusal.BUSY, f"other volunteers took {MOST_TRIES} ranges first", 1.0)


def _mask(facts: ModelFacts, ranges: Iterable[ExpertRange]) -> Mask:
    held = np.zeros((facts.n_layer, facts.n_expert), np.bool_)
    for item in ranges:
        held[item.layer, item.start : item.stop] = True
    return held
