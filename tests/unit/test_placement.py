"""Placement is pure: every pair goes somewhere, once, and always to the same place."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from backbone.engine.swarm.placement import Placement, Replica, ReplicaMap, place
from kvasir.experts import ExpertRange


def ids(*rows: list[int]) -> np.ndarray:
    return np.asarray(rows, np.int32)


def snapshot(**workers: list[ExpertRange]) -> ReplicaMap:
    return ReplicaMap.build(workers)


def test_local_ids_count_through_a_layers_ranges() -> None:
    coverage = snapshot(a=[ExpertRange(2, 20, 22), ExpertRange(2, 3, 5), ExpertRange(1, 7, 8)])
    assert coverage.replicas[2, 3] == (Replica("a", 0),)
    assert coverage.replicas[2, 20] == (Replica("a", 2),)
    assert coverage.replicas[1, 7] == (Replica("a", 0),)


def test_rows_are_sent_once_however_many_experts_they_need() -> None:
    placement = place(0, ids([4, 1], [1, 9]), snapshot(a=[ExpertRange(0, 0, 8)]), {"a"})
    (batch,) = placement.batches
    assert batch.rows.tolist() == [0, 1]
    assert batch.pair_rows.tolist() == [0, 0, 1]
    assert batch.pair_ids.tolist() == [4, 1, 1]
    assert batch.pair_slots.tolist() == [0, 1, 2]
    assert placement.fallback_slots.tolist() == [3]


def test_a_worker_that_is_not_live_is_given_nothing() -> None:
    placement = place(0, ids([0, 1]), snapshot(a=[ExpertRange(0, 0, 2)]), set())
    assert placement.batches == ()
    assert placement.fallback_slots.tolist() == [0, 1]


def test_replicas_share_the_load_and_an_expert_is_never_split() -> None:
    coverage = snapshot(a=[ExpertRange(0, 0, 4)], b=[ExpertRange(0, 0, 4)])
    placement = place(0, ids([0, 1], [0, 2], [0, 3]), coverage, {"a", "b"})
    experts = {batch.worker_id: set(batch.pair_ids.tolist()) for batch in placement.batches}
    assert experts["a"] & experts["b"] == set()
    assert {b.worker_id: len(b.pair_slots) for b in placement.batches} == {"a": 3, "b": 3}


def test_of_replicas_the_one_that_gets_the_row_anyway_is_asked() -> None:
    coverage = snapshot(a=[ExpertRange(0, 0, 4)], b=[ExpertRange(0, 0, 4)])
    placement = place(0, ids([0, 2], [1, 3]), coverage, {"a", "b"})
    assert {b.worker_id: b.rows.tolist() for b in placement.batches} == {"a": [0], "b": [1]}


def test_rows_that_stay_together_cost_no_balance() -> None:
    rng = np.random.default_rng(4)
    expert_ids = np.stack([rng.permutation(256)[:8] for _ in range(16)]).astype(np.int32)
    coverage = snapshot(**{name: [ExpertRange(0, 0, 256)] for name in "abcd"})
    batches = place(0, expert_ids, coverage, set("abcd")).batches
    pairs = [len(batch.pair_slots) for batch in batches]
    assert max(pairs) < 1.2 * np.mean(pairs)
    spread = np.mean([len({int(expert) % 4 for expert in row}) for row in expert_ids])  # as if dealt out
    assert sum(len(batch.rows) for batch in batches) < 0.85 * len(expert_ids) * spread


def test_hot_experts_go_to_no_worker() -> None:
    coverage = snapshot(a=[ExpertRange(0, 0, 8)])
    placement = place(0, ids([0, 9], [3, 0]), coverage, {"a"}, hot={0, 5})
    assert placement.hot_slots.tolist() == [0, 3]
    assert [batch.pair_slots.tolist() for batch in placement.batches] == [[2]]
    assert placement.fallback_slots.tolist() == [1]
    nobody = place(0, ids([0, 9], [3, 0]), coverage, set(), hot={0})
    assert (nobody.hot_slots.tolist(), nobody.fallback_slots.tolist()) == ([0, 3], [1, 2])


@settings(max_examples=60, deadline=None)
@given(
    n_rows=st.integers(1, 20),
    n_used=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    held=st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 15), st.integers(1, 8)), max_size=4),
    live=st.sets(st.sampled_from("abcd")),
)
def test_every_pair_is_placed_exactly_once(
    n_rows: int, n_used: int, seed: int, held: dict[str, tuple[int, int]], live: set[str]
) -> None:
    rng = np.random.default_rng(seed)
    expert_ids = np.stack([rng.permutation(16)[:n_used] for _ in range(n_rows)]).astype(np.int32)
    ranges = {name: [ExpertRange(0, start, start + n)] for name, (start, n) in held.items()}
    placement = place(0, expert_ids, ReplicaMap.build(ranges), live)
    check_complete(placement, expert_ids, ranges)
    again = place(0, expert_ids, ReplicaMap.build(ranges), live)
    for one, other in zip(placement.batches, again.batches, strict=True):
        assert np.array_equal(one.pair_slots, other.pair_slots) and one.worker_id == other.worker_id


def check_complete(placement: Placement, expert_ids: np.ndarray, ranges: dict[str, list[ExpertRange]]) -> None:
    flat = expert_ids.reshape(-1)
    seen = list(placement.fallback_slots)
    for batch in placement.batches:
        seen += list(batch.pair_slots)
        assert len(np.unique(batch.rows)) == len(batch.rows)
        held = ranges[batch.worker_id][0]
        for row, local, slot in zip(batch.pair_rows, batch.pair_ids, batch.pair_slots, strict=True):
            assert batch.rows[row] == slot // expert_ids.shape[1]
            assert held.start + local == flat[slot]
    assert sorted(seen) == list(range(flat.size))
