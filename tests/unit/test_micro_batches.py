"""How many micro-batches: the rule, what it is fed with, and a service in virtual time that follows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator

import numpy as np
import pytest
from torch import Tensor

from backbone.engine.dispatch.counters import LayerTrip, TripMeter
from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.model.expert_caller import StepRows
from backbone.engine.ops.interface import Routing
from backbone.engine.serving.jobs import Completed, Job, JobEvents, JobSpec, NewToken
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.micro_batches import (
    BusyMeter,
    GroupPlanner,
    RowCosts,
    Stopwatch,
    layer_period_s,
    next_n_groups,
    smallest_that_hides,
)
from backbone.engine.serving.service import ServiceLimits, make_groups
from backbone.engine.serving.service_core import ServiceCore
from backbone.engine.swarm.measured import Measured
from backbone.engine.swarm.placement import DispatchBatch
from backbone.engine.swarm.transport import NoWorkers
from tests.unit.engine_service import single_run, spec, tiny_model
from tests.unit.virtual_time import VirtualLoop, run

N_SEQUENCES = 12
ROW_S = 0.001  # of the dense path, in the service below


def in_proportion(n_rows: float) -> float:
    return 0.1 * n_rows / 64


@pytest.mark.parametrize(
    ("away_s", "expected"), [(0.0, 1), (0.02, 2), (0.05, 2), (0.06, 3), (0.07, 4), (0.08, 5), (0.2, 8)]
)
def test_the_rule_takes_the_smallest_number_that_hides(away_s: float, expected: int) -> None:
    assert smallest_that_hides(64, in_proportion, lambda _: away_s, 8) == expected
    assert next_n_groups(8, 64, in_proportion, lambda _: away_s, 8) == 8  # not worse, so it stays
    assert next_n_groups(1, 64, in_proportion, lambda _: away_s, 8) == min(expected, 2)  # and not more at once
    assert next_n_groups(max(1, expected // 2), 64, in_proportion, lambda _: away_s, 8) == expected // 2 * 2 or 1


def test_splitting_that_costs_more_than_waiting_is_not_done() -> None:
    # a layer costs 40 ms for any number of rows: two groups would take 80 ms, one waits 20 ms
    assert smallest_that_hides(64, lambda _: 0.04, lambda _: 0.02, 8) == 2
    assert next_n_groups(1, 64, lambda _: 0.04, lambda _: 0.02, 8) == 1
    assert next_n_groups(1, 64, lambda rows: 0.02 + rows * 0.02 / 64, lambda _: 0.04, 8) == 2


def test_a_number_stays_unless_another_one_is_clearly_better() -> None:
    periods = [layer_period_s(n, 64, in_proportion, lambda _: 0.02) for n in (1, 2, 4)]
    assert periods == pytest.approx([0.12, 0.1, 0.1])
    assert next_n_groups(4, 64, in_proportion, lambda _: 0.02, 8) == 4
    assert next_n_groups(1, 64, in_proportion, lambda _: 0.004, 8) == 1  # 4 % of the time is waited
    assert next_n_groups(8, 2, in_proportion, lambda _: 0.0, 8) == 1  # more groups than sequences
    assert next_n_groups(8, 0, in_proportion, lambda _: 0.02, 8) == 1


def test_costs_are_averaged_by_octave_and_read_between() -> None:
    costs = RowCosts()
    assert costs(5) == 0.0
    costs.add(8, 0.010)
    assert (costs(4), costs(8), costs(32)) == pytest.approx((0.005, 0.010, 0.040))
    costs.add(32, 0.022)
    assert (costs(8), costs(20), costs(32), costs(64)) == pytest.approx((0.010, 0.016, 0.022, 0.044))
    for _ in range(100):
        costs.add(32, 0.034)
    assert costs(32) == pytest.approx(0.034, rel=1e-3)


def batch_of(worker_id: str, n_pairs: int) -> DispatchBatch:
    numbers = np.arange(n_pairs, dtype=np.int32)
    return DispatchBatch(worker_id, numbers, numbers, numbers, numbers)


def test_a_layer_call_waits_for_its_slowest_batch() -> None:
    measured = {
        "near": Measured(0.005, 0.002, 9),
        "far": Measured(0.04, 0.0001, 9, n_pairs_under_way=100),
        "new": Measured(),
    }
    meter = TripMeter()
    assert meter.take() is None
    meter.add(4, [batch_of("near", 4), batch_of("far", 4), batch_of("new", 4)], measured)
    meter.add(4, [batch_of("near", 30), batch_of("far", 2)], measured)
    trip = meter.take()
    assert trip is not None and (trip.n_calls, trip.n_rows) == (2, 4)
    assert (trip.base_s, trip.work_s) == pytest.approx((0.0225, 0.0352))
    meter.add(3, [batch_of("new", 2)], measured)
    assert meter.take() == LayerTrip(1, 3, 0.0, 0.0)


def test_the_planner_plans_when_it_is_time_and_keeps_to_what_was_asked_for() -> None:
    planner = GroupPlanner(8, is_fixed=False, replan_s=2.0)
    assert planner.replan(10.0, 64) == 1  # nothing is known
    planner.note(4 * 0.1, 0.0, LayerTrip(4, 64, 0.02, 0.0))
    assert planner.replan(11.9, 64) == 1
    assert planner.replan(12.0, 64) == 2
    planner.note(0.0, 0.0, LayerTrip(4, 0, 0.0, 0.0))
    assert planner.replan(14.0, 0) == 2  # nobody is there: it stays as it is
    assert planner.replan(14.0, 1) == 1
    fixed = GroupPlanner(3, is_fixed=True)
    fixed.note(4 * 0.1, 0.0, LayerTrip(4, 64, 10.0, 0.0))
    assert fixed.replan(1e6, 64) == 3


def test_a_planner_without_workers_stays_with_one_group() -> None:
    planner = GroupPlanner(16, is_fixed=False)
    for step in range(100):
        planner.note(0.1, 0.01, LayerTrip(4, 64, 0.0, 0.0))
        assert planner.replan(3.0 * step, 64) == 1


def test_a_stopwatch_counts_running_and_not_waiting() -> None:
    now = [0.0]

    async def task(loop: VirtualLoop) -> str:
        for _ in range(3):
            now[0] += 1.0
            await asyncio.sleep(5)
            now[0] += 0.5
        return "done"

    async def test(loop: VirtualLoop) -> None:
        meter = BusyMeter(lambda: now[0])
        assert meter.beside_s() == 0.0
        watch = Stopwatch(task(loop), meter)
        waiting = asyncio.ensure_future(_await(watch))
        await asyncio.sleep(1)
        now[0] += 100.0  # while it waits
        assert await waiting == "done"
        assert (watch.seconds, meter.in_steps_s, meter.beside_s()) == (4.5, 4.5, 100.0)
        cancelled = asyncio.ensure_future(_await(Stopwatch(task(loop), meter)))
        await asyncio.sleep(1)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    run(test)


async def _await(watch: Stopwatch[str]) -> str:
    return await watch


class FarExperts:
    """The own replica, as if behind a round trip; computing a layer's dense part lets the loop's clock go on."""

    def __init__(self, loaded: LoadedModel, loop: VirtualLoop, round_trip_s: float) -> None:
        self._experts = ExpertDispatcher(loaded.store, NoWorkers())
        self._loop = loop
        self._round_trip_s = round_trip_s
        self.trips = TripMeter()

    def begin_step(self, rows: StepRows) -> None:
        self._experts.begin_step(rows)

    def submit(self, layer: int, rows: Tensor, routing: Routing) -> Awaitable[Tensor]:
        self._loop.advance(ROW_S * len(rows))
        if self._round_trip_s:
            measured = {"far": Measured(self._round_trip_s, 0.0, 100)}
            self.trips.add(len(rows), [batch_of("far", len(rows))], measured)
        else:
            self.trips.add(len(rows), [], {})
        return self._answer(self._experts.submit(layer, rows, routing))

    async def _answer(self, computing: Awaitable[Tensor]) -> Tensor:
        if self._round_trip_s:
            await asyncio.sleep(self._round_trip_s)
        return await computing


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    path = tiny_model(tmp_path_factory.mktemp("groups"))
    with LoadedModel.open(path, n_slot=N_SEQUENCES, n_threads=1) as loaded:
        yield loaded


async def serve(
    loop: VirtualLoop, loaded: LoadedModel, jobs: list[JobSpec], round_trip_s: float, n_groups: int | None
) -> tuple[dict[str, list[int]], float, set[int]]:
    """Tokens by job, seconds of the second half of the tokens, and the numbers of groups in use."""
    tokens: dict[str, list[int]] = {job.job_id: [] for job in jobs}
    ended, moments, used = asyncio.Event(), list[float](), set[int]()

    def on_events(events: JobEvents) -> None:
        used.add(core.planner.n_groups)
        for job_id, event in events:
            if isinstance(event, NewToken):
                tokens[job_id].append(event.sampled.token)
                moments.append(loop.time())
            elif isinstance(event, Completed) and not core.jobs:
                ended.set()

    limits = ServiceLimits(n_groups=n_groups, max_rows=64)
    most = n_groups or 6
    core = ServiceCore(
        make_groups(loaded, lambda _: FarExperts(loaded, loop, round_trip_s), limits, most),
        n_slot=N_SEQUENCES,
        max_waiting=9,
        clock=loop.time,
        on_events=on_events,
        planner=GroupPlanner(most, is_fixed=n_groups is not None, replan_s=0.2),
        busy_clock=lambda: loop.busy_s,
    )
    stepping = asyncio.ensure_future(core.run())
    for job in jobs:
        core.submit(Job(job, loaded.tokenizer, loop.time() + job.deadline_s))
    await ended.wait()
    stepping.cancel()
    await asyncio.gather(stepping, return_exceptions=True)
    assert loaded.model.cache.n_free == N_SEQUENCES
    return tokens, moments[-1] - moments[len(moments) // 2], used


def test_a_service_hides_the_round_trip_and_changes_no_text(loaded: LoadedModel) -> None:
    jobs = [spec(f"j{n}", (n + 1, 2 * n + 3), seed=n, max_tokens=60, deadline_s=1e6) for n in range(N_SEQUENCES)]
    wanted = {job.job_id: single_run(loaded, job)[0] for job in jobs}
    seconds, used = {}, {}
    for name, round_trip_s, n_groups in (("near", 0.0, None), ("hidden", 0.005, None), ("waited", 0.005, 1)):
        run_of = run(lambda loop, r=round_trip_s, n=n_groups: serve(loop, loaded, jobs, r, n))  # type: ignore[misc]
        tokens, seconds[name], used[name] = run_of
        assert tokens == wanted
    assert used["near"] == {1}
    assert max(used["hidden"]) in (2, 3)
    assert seconds["near"] / seconds["hidden"] > 0.9
    assert seconds["near"] / seconds["waited"] < 0.75


def test_sequences_go_to_the_groups_in_use_when_others_end(loaded: LoadedModel) -> None:
    jobs = [
        spec(f"j{n}", (n + 1,), seed=n, max_tokens=8 if n % 2 else 90, deadline_s=1e6, n=1 + n % 2)
        for n in range(N_SEQUENCES - 4)
    ]
    wanted = {job.job_id: single_run(loaded, job)[0] for job in jobs if job.n_choices == 1}
    tokens, _, used = run(lambda loop: serve(loop, loaded, jobs, 0.02, None))
    assert {job_id: tokens[job_id] for job_id in wanted} == wanted
    assert max(used) > 2
