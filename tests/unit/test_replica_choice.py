"""Who is asked, and how long is waited: rules over measurements that a test makes up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backbone.engine.dispatch.deadlines import DeadlineRule, patience_s
from backbone.engine.swarm.measured import MAX_COUNT, Measured, RatioHistogram
from backbone.engine.swarm.placement import ReplicaMap, place, place_again
from backbone.engine.swarm.replica_choice import PROBE_EVERY, least_expected, sooner_of_two, taking_part, with_probe
from backbone.engine.swarm.worker_health import FIRST_SHARE, Health
from backbone.engine.swarm.worker_meter import WorkerMeter
from kvasir.experts import ExpertRange

BOTH = ReplicaMap.build({"far": [ExpertRange(0, 0, 8)], "near": [ExpertRange(0, 0, 8)]})
NEAR = Measured(base_s=0.001, pair_s=1e-4, n_answers=100)
FAR = Measured(base_s=0.050, pair_s=1e-4, n_answers=100)


def answered(measured: Measured, times: list[float], n_pairs: int = 4) -> Measured:
    for seconds in times:
        measured = measured.after_answer(n_pairs, seconds, measured.expected_s(n_pairs))
    return measured


def shares(measured: dict[str, Measured], n_rows: int = 1) -> Counter[str]:
    ids = np.stack([np.random.default_rng(row).permutation(8)[:4] for row in range(n_rows)]).astype(np.int32)
    placement = place(0, ids, BOTH, {"far", "near"}, measured)
    return Counter({batch.worker_id: len(batch.pair_slots) for batch in placement.batches})


def test_a_near_worker_is_preferred() -> None:
    assert shares({"near": NEAR, "far": FAR}) == {"near": 4}


def test_a_queue_sends_work_elsewhere() -> None:
    busy = NEAR.after_sent(n_pairs=1000, n_bytes=10**6)
    assert shares({"near": busy, "far": FAR}) == {"far": 4}
    assert shares({"near": busy.after_end(1000, 10**6), "far": FAR}) == {"near": 4}


def test_a_large_step_is_shared_so_that_both_are_done_about_together() -> None:
    near = Measured(base_s=0.001, pair_s=1e-3, n_answers=9)
    far = Measured(base_s=0.050, pair_s=1e-3, n_answers=9)
    split = shares({"near": near, "far": far}, n_rows=64)
    assert split["near"] > split["far"] > 0
    assert near.expected_s(split["near"]) == pytest.approx(far.expected_s(split["far"]), abs=0.05)


def test_a_worker_that_was_never_measured_is_tried() -> None:
    assert shares({"near": NEAR}) == {"far": 4}


@settings(max_examples=50, deadline=None)
@given(
    names=st.lists(st.sampled_from("abcdef"), min_size=1, unique=True),
    base=st.floats(0, 1),
    load=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50)),
)
def test_the_choice_depends_on_nothing_but_its_inputs(names: list[str], base: float, load: dict[str, int]) -> None:
    measured = {name: Measured(base_s=base) for name in names}
    chosen = least_expected(names, load, measured, 3)
    assert chosen == least_expected(sorted(names, reverse=True), load, measured, 3)
    assert chosen == min(names, key=lambda name: (load.get(name, 0), name))


def test_a_batch_goes_to_another_worker_only_if_it_holds_all_of_it() -> None:
    ids = np.asarray([[0, 3], [7, 0]], np.int32)
    part = [ExpertRange(0, 0, 4)]
    coverage = ReplicaMap.build({"a": [ExpertRange(0, 0, 8)], "b": [ExpertRange(0, 2, 8), ExpertRange(0, 0, 2)]})
    (batch,) = place(0, ids, coverage, {"a"}).batches
    again = place_again(batch, 0, ids, coverage, {"a", "b"})
    assert again is not None
    assert (again.worker_id, again.pair_ids.tolist()) == ("b", [0, 3, 7, 0])
    assert again.pair_slots.tolist() == batch.pair_slots.tolist()
    assert place_again(batch, 0, ids, coverage, {"a"}) is None
    less = ReplicaMap.build({"a": [ExpertRange(0, 0, 8)], "b": part})
    assert place_again(batch, 0, ids, less, {"a", "b"}) is None


def test_a_worker_that_was_slow_once_is_tried_again_in_every_layer() -> None:
    live, measured, n_layer = frozenset({"near", "far"}), {"near": NEAR, "far": FAR}, 8
    probed: Counter[tuple[str, int]] = Counter()
    for turn in range(PROBE_EVERY * 400):
        seen = with_probe(live, measured, turn)
        if seen is not measured:
            (name,) = (name for name in live if seen[name].n_answers == 0)
            probed[name, turn % n_layer] += 1
    assert sum(probed.values()) == 400
    assert len(probed) == 2 * n_layer
    assert max(probed.values()) < 2 * min(probed.values())


def test_a_worker_comes_back_to_a_share_of_every_layer() -> None:
    measured = {"w": Measured(share=FIRST_SHARE), "v": Measured()}
    n_layer, n_calls = 8, 8 * 400
    turns = [turn for turn in range(n_calls) if "w" in taking_part(frozenset("vw"), measured, turn)]
    assert len(turns) == pytest.approx(n_calls * FIRST_SHARE, rel=0.05)
    by_layer = Counter(turn % n_layer for turn in turns)
    assert set(by_layer) == set(range(n_layer))
    assert max(by_layer.values()) <= 1.3 * min(by_layer.values())
    assert all("v" in taking_part(frozenset("vw"), measured, turn) for turn in range(100))


def test_a_failure_costs_most_of_the_work_and_good_answers_bring_it_back() -> None:
    health = Health().after_failure(5.0, "late")
    assert health.share == FIRST_SHARE
    grown = []
    while health.share < 1.0:
        health = health.after_success()
        grown.append(health.share)
    assert grown == sorted(grown)
    assert 5 < len(grown) < 20


def test_deadlines_are_wide_at_first_and_then_follow_the_slowest_hundredth() -> None:
    rule = DeadlineRule(longest_s=10.0, shortest_s=0.001, min_answers=64)
    rng = np.random.default_rng(1)
    few = answered(Measured(), [0.02] * 10)
    assert patience_s(few, 4, rule) == 10.0
    usual = answered(Measured(), rng.uniform(0.02, 0.03, 400).tolist())
    assert 0.03 < patience_s(usual, 4, rule) < 0.2
    sometimes_slow = answered(usual, [0.02 if number % 20 else 0.2 for number in range(600)])
    assert patience_s(sometimes_slow, 4, rule) > 0.2
    assert patience_s(usual, 4, DeadlineRule(longest_s=10.0, shortest_s=0.5)) == 0.5
    assert patience_s(usual, 4, DeadlineRule(longest_s=0.01, shortest_s=0.5)) == 0.01


def test_a_large_batch_has_more_time() -> None:
    rule = DeadlineRule(shortest_s=0.001)
    measured = Measured(base_s=0.01, pair_s=1e-3, n_answers=100)
    assert patience_s(measured, 1000, rule) > 10 * patience_s(measured, 1, rule)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.26, 200.0), min_size=1, max_size=300))
def test_a_quantile_is_an_upper_bound_within_a_bucket(ratios: list[float]) -> None:
    histogram = RatioHistogram()
    for ratio in ratios:
        histogram = histogram.with_ratio(ratio)
    exact = sorted(ratios)[max(0, int(np.ceil(0.99 * len(ratios))) - 1)]
    assert exact <= histogram.quantile(0.99) * 1.0001
    assert histogram.quantile(0.99) <= exact * 2**0.25 * 1.0001


def test_old_answers_fade() -> None:
    histogram = RatioHistogram()
    for _ in range(MAX_COUNT):
        histogram = histogram.with_ratio(100.0)
    for _ in range(16 * MAX_COUNT):
        histogram = histogram.with_ratio(1.0)
    assert histogram.quantile(0.99) < 2.0


def test_a_meter_counts_what_is_under_way_and_only_answers_as_answers() -> None:
    now = [100.0]
    meter = WorkerMeter(lambda: now[0])
    first: Future[int] = Future()
    second: Future[int] = Future()
    first.add_done_callback(meter.start(4, 1000))
    second.add_done_callback(meter.start(6, 500))
    assert (meter.measured.n_pairs_under_way, meter.measured.n_bytes_under_way) == (10, 1500)
    now[0] = 100.25
    first.set_result(1)
    assert (meter.measured.n_pairs_under_way, meter.measured.n_answers) == (6, 1)
    assert meter.measured.base_s == 0.25
    second.set_exception(TimeoutError())
    assert (meter.measured.n_pairs_under_way, meter.measured.n_answers) == (0, 1)


def test_an_answer_that_is_there_before_anyone_waits_is_timed_from_its_dispatch() -> None:
    now = [100.0]
    meter = WorkerMeter(lambda: now[0])
    stop = meter.start(4, 1000)
    now[0] = 100.25
    done: Future[int] = Future()
    done.set_result(1)
    done.add_done_callback(stop)
    assert meter.measured.base_s == 0.25


MANY = [f"w{number:02}" for number in range(12)]


def herd(choose: Callable[[int, int, dict[str, Measured]], str], n_backbones: int = 16) -> Counter[str]:
    """Whom backbones ask at one moment, each an expert that all hold, by measurements that are a little old."""
    rng = np.random.default_rng(7)
    measured = {name: Measured(base_s=float(rng.uniform(0.010, 0.012)), n_answers=99) for name in MANY}
    return Counter(choose(expert, backbone, measured) for backbone in range(n_backbones) for expert in range(12))


def test_two_choices_spread_the_load_of_backbones_that_know_the_same() -> None:
    best = herd(lambda expert, turn, measured: least_expected(MANY, {}, measured, 4))
    of_two = herd(lambda expert, turn, measured: sooner_of_two(MANY, {}, measured, 4, (0, expert, turn)))
    assert len(best) == 1
    assert len(of_two) >= len(MANY) - 1  # the one that is last in every draw may have none
    assert max(of_two.values()) < 3 * sum(of_two.values()) / len(MANY)


def test_the_sooner_of_two_is_never_the_last_of_all() -> None:
    measured = {name: Measured(base_s=0.01, n_answers=99) for name in MANY} | {
        "w05": Measured(base_s=2.0, n_answers=99)
    }
    chosen = Counter(sooner_of_two(MANY, {}, measured, 1, (layer, 3, 8)) for layer in range(2000))
    assert chosen["w05"] == 0
    assert all(chosen[name] for name in MANY if name != "w05")  # the last of the equals wins against it alone


def test_draws_depend_on_layer_expert_and_turn_alone() -> None:
    measured = {name: Measured(base_s=0.01, n_answers=99) for name in MANY}

    def chosen(*call: int) -> str:
        assert len(call) == 3
        first = sooner_of_two(MANY, {}, measured, 1, call)
        assert first == sooner_of_two(MANY[::-1], {}, measured, 1, call)
        return first

    for axis in range(3):
        assert len({chosen(*(number if at == axis else 5 for at in range(3))) for number in range(64)}) > 6


@pytest.mark.parametrize("n_layer", [6, 48])
def test_a_probed_worker_is_drawn_however_many_hold_the_expert(n_layer: int) -> None:
    coverage = ReplicaMap.build({name: [ExpertRange(layer, 0, 8) for layer in range(n_layer)] for name in MANY})
    measured = {name: Measured(base_s=0.01, n_answers=99) for name in MANY}
    ids = np.asarray([[0, 1, 2, 3]], np.int32)
    for number in range(1, 40):
        turn = number * PROBE_EVERY
        seen = with_probe(MANY, measured, turn)
        (probed,) = (name for name in MANY if seen[name].n_answers == 0)
        batches = place(turn % n_layer, ids, coverage, MANY, seen, turn=turn).batches
        assert probed in {batch.worker_id for batch in batches}
