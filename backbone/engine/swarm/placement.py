"""Which worker computes which routed pair: pure functions over a coverage snapshot and measurements.

`dispatch.dispatcher` calls this once a MoE layer, and again for a batch whose worker is late. Nothing here knows
sockets, clocks or tensors' values beyond expert ids; the same inputs always give the same placement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from backbone.engine.swarm.measured import Measured
from backbone.engine.swarm.replica_choice import least_expected, sooner_of_two
from kvasir.experts import ExpertRange

IntArray = npt.NDArray[np.int32]
NOT_MEASURED: Mapping[str, Measured] = {}
NO_SLOTS: IntArray = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Replica:
    """One live copy of an expert: the worker that holds it and its local id there."""

    worker_id: str
    local_id: int


@dataclass(frozen=True, slots=True)
class ReplicaMap:
    """Replicas by (layer, expert_id), in the order of their workers' ids; and each worker's ranges, sorted."""

    replicas: Mapping[tuple[int, int], tuple[Replica, ...]]
    held: Mapping[str, tuple[ExpertRange, ...]] = field(default_factory=dict)

    @staticmethod
    def build(coverage: Mapping[str, Iterable[ExpertRange]]) -> ReplicaMap:
        """From what each worker holds. A worker's local ids count through its ranges of a layer in ascending order."""
        found: dict[tuple[int, int], list[Replica]] = {}
        held = {worker_id: tuple(sorted(coverage[worker_id])) for worker_id in sorted(coverage)}
        for worker_id, ranges in held.items():
            next_local: dict[int, int] = {}
            for part in ranges:
                first = next_local.get(part.layer, 0)
                for offset in range(part.n_experts):
                    replica = Replica(worker_id, first + offset)
                    found.setdefault((part.layer, part.start + offset), []).append(replica)
                next_local[part.layer] = first + part.n_experts
        return ReplicaMap({key: tuple(replicas) for key, replicas in found.items()}, held)


@dataclass(frozen=True, slots=True, eq=False)
class DispatchBatch:
    """The pairs of one layer that one worker computes. Each row is sent once, however many experts it needs."""

    worker_id: str
    rows: IntArray  # [n_rows] row numbers in the batch, ascending
    pair_rows: IntArray  # [n_pairs] index into `rows`
    pair_ids: IntArray  # [n_pairs] local ids at the worker
    pair_slots: IntArray  # [n_pairs] flat index t * n_used + j of the result


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Everything that is to be computed in one layer: by workers, and by the backbone's own replica."""

    batches: tuple[DispatchBatch, ...]
    hot_slots: IntArray  # [n_pairs] flat indices of experts that are to be computed here
    fallback_slots: IntArray  # [n_pairs] flat indices that no live worker holds


def place(
    layer: int,
    expert_ids: IntArray,
    coverage: ReplicaMap,
    live: Collection[str],
    measured: Mapping[str, Measured] = NOT_MEASURED,
    *,
    hot: Collection[int] = frozenset(),
    turn: int = 0,
) -> Placement:
    """Assign every routed pair of a layer; expert_ids [T, n_used]. `hot` experts go to no worker.

    All pairs of an expert go to one replica, so that its weights are read once; of two replicas, which its number and
    the `turn` draw, the one that is expected to answer first wins, what it was given in this layer included, then
    the smallest worker id. A pair whose row goes to the worker anyway counts half: its bytes are on the way already.
    Without measurements the winner is the one with the least to do of all. Busy experts are placed first.
    """
    flat: list[int] = expert_ids.reshape(-1).tolist()
    if not live and not hot:
        return Placement((), NO_SLOTS, np.arange(len(flat), dtype=np.int32))
    owner: dict[int, Replica] = {}
    load: dict[str, float] = {}
    calls = Counter(flat)
    has_choice = any(len(coverage.replicas.get((layer, expert_id), ())) > 1 for expert_id in calls)
    rows_of_expert = _row_sets(flat, expert_ids.shape[1]) if has_choice else {}
    rows_of_worker: dict[str, int] = {}
    for expert_id, n_pairs in sorted(calls.items(), key=lambda item: (-item[1], item[0])):
        if expert_id in hot:
            continue
        choices = {r.worker_id: r for r in coverage.replicas.get((layer, expert_id), ()) if r.worker_id in live}
        if choices:
            rows = rows_of_expert.get(expert_id, 0)
            before = {
                name: load.get(name, 0) - (rows & rows_of_worker.get(name, 0)).bit_count() / 2 for name in choices
            }
            (name, *others) = choices
            if others:
                name = sooner_of_two(choices, before, measured, n_pairs, (layer, expert_id, turn))
            owner[expert_id] = choices[name]
            load[name] = before[name] + n_pairs
            rows_of_worker[name] = rows_of_worker.get(name, 0) | rows
    return _group(flat, expert_ids.shape[1], owner, hot)


def place_again(
    batch: DispatchBatch,
    layer: int,
    expert_ids: IntArray,
    coverage: ReplicaMap,
    live: Collection[str],
    measured: Mapping[str, Measured] = NOT_MEASURED,
) -> DispatchBatch | None:
    """The same batch for another live worker that holds all of its experts; None when there is none.

    `expert_ids` [T, n_used] are the layer's, as they were placed first.
    """
    wanted = expert_ids.reshape(-1)[batch.pair_slots].tolist()
    local_ids: dict[str, dict[int, int]] = {}
    for expert_id in set(wanted):
        for replica in coverage.replicas.get((layer, expert_id), ()):
            local_ids.setdefault(replica.worker_id, {})[expert_id] = replica.local_id
    n_wanted = len(set(wanted))
    able = [w for w, ids in local_ids.items() if w in live and w != batch.worker_id and len(ids) == n_wanted]
    if not able:
        return None
    chosen = least_expected(able, {}, measured, len(wanted))
    pair_ids = np.asarray([local_ids[chosen][expert_id] for expert_id in wanted], np.int32)
    return DispatchBatch(chosen, batch.rows, batch.pair_rows, pair_ids, batch.pair_slots)


def _row_sets(expert_ids: Sequence[int], n_used: int) -> dict[int, int]:
    """The rows of each expert, as bits of a number."""
    rows: dict[int, int] = {}
    for slot, expert_id in enumerate(expert_ids):
        rows[expert_id] = rows.get(expert_id, 0) | 1 << slot // n_used
    return rows


def _group(expert_ids: Sequence[int], n_used: int, owner: Mapping[int, Replica], hot: Collection[int]) -> Placement:
    """Pairs by worker, ascending by row and selection: a frame's layout is a function of its content."""
    computed_here: list[int] = []
    fallback: list[int] = []
    slots: dict[str, list[int]] = {}
    slots_of_expert = {
        expert_id: slots.setdefault(owner[expert_id].worker_id, [])
        if expert_id in owner
        else (computed_here if expert_id in hot else fallback)
        for expert_id in set(expert_ids)
    }
    for slot, expert_id in enumerate(expert_ids):
        slots_of_expert[expert_id].append(slot)
    batches = [
        _batch(worker_id, slots[worker_id], n_used, [owner[expert_ids[slot]].local_id for slot in slots[worker_id]])
        for worker_id in sorted(slots)
    ]
    return Placement(tuple(batches), np.array(computed_here, np.int32), np.array(fallback, np.int32))


def _batch(worker_id: str, slots: Sequence[int], n_used: int, local_ids: Sequence[int]) -> DispatchBatch:
    """One worker's pairs; slots ascend, so the pairs of a row stand together."""
    pair_slots = np.array(slots, np.int32)
    row_of_pair = pair_slots // n_used
    is_first = np.ones(len(slots), np.bool_)
    np.not_equal(row_of_pair[1:], row_of_pair[:-1], out=is_first[1:])
    pair_rows = is_first.cumsum(dtype=np.int32) - 1
    return DispatchBatch(worker_id, row_of_pair[is_first], pair_rows, np.array(local_ids, np.int32), pair_slots)
