"""The emulated swarm of the benchmarks: its clock, ways and queues, who holds what, and that answers are right."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.sum_calibration import calibrate
from backbone.engine.swarm.transport import NoWorkers, Transport
from benchmarks.emulator.classes import CLASSES, Flight, LinkClass, Port, WorkerClass
from benchmarks.emulator.clock import CpuLoop
from benchmarks.emulator.model import TINY, emulated_model, prompts
from benchmarks.emulator.ranges import assign_ranges
from benchmarks.emulator.run import Load, run_emulated
from benchmarks.emulator.swarm import EmulatedSwarm
from kvasir.errors import EdgeError, EdgeTimeout
from kvasir.experts import ExpertRange
from kvasir.kernels.sums import sum_outputs
from kvasir.wire.frames import SumOrder
from kvasir.wire.split import Answer, ExpertCall
from tests.unit.engine_service import SHAPE, tiny_model

SLOW = WorkerClass("slow", pair_s=10.0, call_s=100.0)
WORK_S = 5.0  # more than any test computes, far less than what it waits for


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    with LoadedModel.open(tiny_model(tmp_path_factory.mktemp("emulator")), n_slot=6, n_threads=1) as loaded:
        yield loaded


@pytest.fixture
def loop() -> Iterator[CpuLoop]:
    loop = CpuLoop()
    yield loop
    loop.close()


def whole(loaded: LoadedModel) -> tuple[ExpertRange, ...]:
    return tuple(ExpertRange(layer, 0, loaded.card.n_expert) for layer in loaded.card.moe_layers)


def test_the_clock_skips_idle_time_and_leaves_free_work_out(loop: CpuLoop) -> None:
    async def test() -> None:
        begun, busy_before = loop.time(), loop.busy_s
        await asyncio.sleep(1000.0)
        with loop.free():
            sum(range(300_000))
        assert 1000.0 <= loop.time() - begun < 1000.0 + WORK_S
        assert 0 < loop.busy_s - busy_before < WORK_S

    loop.run_until_complete(test())
    with pytest.raises(RuntimeError, match="everything waits"):
        loop.run_until_complete(asyncio.Event().wait())


def test_bytes_queue_at_a_port_and_never_overtake_on_their_way() -> None:
    port = Port(100.0)
    assert [port.passed(10.0, 200), port.passed(11.0, 100), port.passed(20.0, 100)] == [12.0, 13.0, 21.0]
    flight = Flight(LinkClass(2.0, jitter_s=5.0), np.random.default_rng(1))
    arrivals = [flight.arrival(now) for now in np.arange(0.0, 50.0, 0.5)]
    assert arrivals == sorted(arrivals)
    late = np.asarray(arrivals) - np.arange(0.0, 50.0, 0.5)
    assert late.min() >= 1.0 and late.max() < 6.0 and late.max() > 4.0


def dispatch(swarm: Transport, loaded: LoadedModel, n_pairs: int, deadline_s: float = 1e6) -> asyncio.Future[Answer]:
    rows = np.random.default_rng(n_pairs).standard_normal((n_pairs, loaded.card.d_model)).astype(np.float32)
    encoded, ids = loaded.store.kernel.encode_rows(rows), np.arange(n_pairs, dtype=np.int32)
    call = ExpertCall(0, encoded, loaded.store.kernel.row_format, ids, ids % 4)
    return asyncio.wrap_future(swarm.dispatch("w", call, deadline_s))


def test_answers_come_when_way_and_queue_let_them(loop: CpuLoop, loaded: LoadedModel) -> None:
    link = LinkClass(1000.0, to_worker=float("inf"), to_backbone=4 * loaded.card.d_model / 50.0)  # 50 s an output

    async def test() -> None:
        swarm = EmulatedSwarm(loop, loaded.store, {"w": whole(loaded)}, SLOW, link)
        begun = loop.time()
        answers, moments = [dispatch(swarm, loaded, n) for n in (2, 3)], list[float]()
        for answer in answers:
            await answer
            moments.append(loop.time() - begun)
        # 500 s there, 100 + 10 s a pair of work, 50 s a pair for the answer's bytes, 500 s back
        assert moments == pytest.approx([500 + 120 + 100 + 500, 500 + 120 + 130 + 150 + 500], abs=WORK_S)
        assert swarm.workers_busy_s["w"] == pytest.approx(250.0)
        assert swarm.measurements()["w"].n_pairs_under_way == 0
        assert swarm.measurements()["w"].base_s == pytest.approx(1220.0, abs=WORK_S)
        with pytest.raises(EdgeTimeout, match=r"no result within 7\.0 s"):
            await dispatch(swarm, loaded, 1, deadline_s=7.0)

    loop.run_until_complete(test())


def test_an_answer_has_the_kernels_bits(loop: CpuLoop, loaded: LoadedModel) -> None:
    half = SHAPE.n_expert // 2
    kernel = loaded.store.kernel
    rows = kernel.encode_rows(np.random.default_rng(3).standard_normal((3, loaded.card.d_model)).astype(np.float32))
    pair_rows, local_ids = np.array([0, 1, 1, 2], np.int32), np.array([0, 1, half - 1, 2], np.int32)
    expected = loaded.store.layer(1).compute(rows, pair_rows, local_ids + half)
    order = SumOrder(np.array([0.5, 0.25, 0.75, 1.0], np.float32), np.array([-20, -22, -19], np.int32))

    async def test() -> None:
        held = {"w": (ExpertRange(1, half, SHAPE.n_expert),)}
        swarm = EmulatedSwarm(loop, loaded.store, held, SLOW, LinkClass(0.0))
        call = ExpertCall(1, rows, kernel.row_format, pair_rows, local_ids)
        outputs = await asyncio.wrap_future(swarm.dispatch("w", call, 1e6))
        np.testing.assert_array_equal(outputs, expected)
        sums = await asyncio.wrap_future(swarm.dispatch("w", replace(call, sums=order), 1e6))
        np.testing.assert_array_equal(sums, sum_outputs(expected, order.weights, pair_rows, order.exponents))

    loop.run_until_complete(test())


def test_a_lost_connection_fails_what_is_under_way_and_comes_back(loop: CpuLoop, loaded: LoadedModel) -> None:
    async def test() -> None:
        link = LinkClass(1e5, lose_after_s=100.0, lost_for_s=50.0)
        swarm = EmulatedSwarm(loop, loaded.store, {"w": whole(loaded)}, SLOW, link)
        with pytest.raises(EdgeError, match="connection lost"):
            await dispatch(swarm, loaded, 1)
        assert not swarm.live() and not swarm.coverage().held
        with pytest.raises(EdgeError, match="not connected"):
            dispatch(swarm, loaded, 1)
        await asyncio.sleep(50.0)
        assert swarm.live() == {"w"} and swarm.n_losses == 1

    loop.run_until_complete(test())


@pytest.mark.parametrize("sums", [False, True])
def test_texts_are_those_without_workers_whatever_is_lost(loaded: LoadedModel, sums: bool) -> None:
    load, scale = Load(prompts(4), 2, 24), calibrate(loaded) if sums else None
    alone = run_emulated(loaded, lambda _: NoWorkers(), load, sum_scale=scale)
    assert alone.n_fallback > 0 and alone.n_groups == 1
    assert alone.utilisation == pytest.approx(1.0, rel=0.2)
    held = assign_ranges(alone.traffic, 3, fewest=2)
    kind = WorkerClass("worker", pair_s=0.01, call_s=0.01)
    swarms = list[EmulatedSwarm]()

    def unreliable(loop: CpuLoop) -> EmulatedSwarm:
        link = LinkClass(0.02, jitter_s=0.02, to_worker=1e6, to_backbone=1e6, lose_after_s=1.5, lost_for_s=0.1)
        swarms.append(EmulatedSwarm(loop, loaded.store, held, kind, link, seed=5))
        return swarms[-1]

    run = run_emulated(loaded, unreliable, load, sum_scale=scale)
    assert run.token_ids == alone.token_ids
    assert swarms[0].n_losses > 0 and run.n_fallback < alone.n_fallback
    assert 0 < run.tok_s < alone.tok_s and 0 < run.utilisation < 1.1


def test_64_workers_of_every_class_give_the_same_texts(tmp_path: Path) -> None:
    load = Load(prompts(8), 2, 2)
    with emulated_model(tmp_path, TINY, 8) as tiny:
        alone = run_emulated(tiny, lambda _: NoWorkers(), load)
        held = assign_ranges(alone.traffic, 64, fewest=2)
        assert len(held) == 64 and all(held.values())
        swarms = list[EmulatedSwarm]()

        def swarm(kind: WorkerClass, bytes_s: float, loop: CpuLoop) -> EmulatedSwarm:
            link = LinkClass(0.02, jitter_s=0.005, to_worker=bytes_s, to_backbone=bytes_s)
            swarms.append(EmulatedSwarm(loop, tiny.store, held, kind, link))
            return swarms[-1]

        for kind, bytes_s in CLASSES.values():
            run = run_emulated(tiny, partial(swarm, kind, bytes_s), load)
            assert run.token_ids == alone.token_ids
            assert run.n_fallback == 0  # so the workers computed every pair
            assert sum(busy_s > 0 for busy_s in swarms[-1].workers_busy_s.values()) >= TINY.n_expert


def test_ranges_follow_the_markets_rules() -> None:
    traffic = np.random.default_rng(2).integers(50, 400, (3, 32))
    traffic[:, 7] = 3000
    for n_workers in (1, 2, 5, 16):
        held = assign_ranges(traffic, n_workers, fewest=2)
        assert len(held) == n_workers
        replicas = Counter(
            (part.layer, expert)
            for ranges in held.values()
            for part in ranges
            for expert in range(part.start, part.stop)
        )
        assert set(replicas) == {(layer, expert) for layer in range(3) for expert in range(32)}
        for ranges in held.values():
            own = Counter((p.layer, expert) for p in ranges for expert in range(p.start, p.stop))
            assert max(own.values()) == 1  # no worker has an expert twice
        sizes = [sum(part.n_experts for part in ranges) for ranges in held.values()]
        assert max(sizes) - min(sizes) <= max(sizes) / 2
        assert min(replicas.values()) == min(n_workers, 2)
        if n_workers > 2:  # the busiest expert is the one with the most replicas
            assert replicas[0, 7] == max(replicas.values()) > 2
