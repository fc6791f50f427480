"""The worker's compute queue: turns, batches with every answer as it would be alone, failures that stay put."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from kvasir.kernels.api import RowFormat
from kvasir.kernels.sums import sum_outputs
from kvasir.wire.frames import Dispatch, Fault, FaultCode, ReplyType, Result, SumOrder, SumResult
from kvasir.worker.serving.compute import MAX_BATCH_BYTES, Answer, ComputeQueue, Job, compute_batch
from tests.unit.fake_experts import D_MODEL, FakeExperts, expected


def dispatch(
    request: int, layer: int = 0, n_rows: int = 2, value: float = 1, reply: ReplyType = ReplyType.F32
) -> Dispatch:
    rows = (np.arange(n_rows * D_MODEL, dtype=np.float32).reshape(n_rows, D_MODEL) + request) * np.float32(value)
    pair_rows = np.arange(n_rows, dtype=np.int32)[::-1].copy()
    return Dispatch(request, layer, RowFormat.F32, D_MODEL, rows.view(np.uint8), pair_rows, pair_rows % 3, reply)


class Desk:
    """Submits jobs to a queue and collects the answers in the order in which they come."""

    def __init__(self, *layers: FakeExperts, max_batch_bytes: int = MAX_BATCH_BYTES) -> None:
        self.queue = ComputeQueue({layer.layer: layer for layer in layers}, max_batch_bytes)
        self.answers: list[tuple[str, Answer]] = []
        self._wanted = 0
        self._done = asyncio.Event()

    def submit(self, client: str, work: Dispatch) -> None:
        self._wanted += 1
        self.queue.submit(Job(client, work, lambda answer: self._take(client, answer)))

    def _take(self, client: str, answer: Answer) -> None:
        self.answers.append((client, answer))
        self._done.set()

    async def all_answers(self, count: int | None = None) -> list[tuple[str, int]]:
        """(client, request) of the answers, once as many have come as were asked for."""
        async with asyncio.timeout(20):
            while len(self.answers) < (self._wanted if count is None else count):
                self._done.clear()
                await self._done.wait()
        return [(client, answer.request) for client, answer in self.answers]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def check(work: Dispatch, answer: Answer) -> None:
    assert isinstance(answer, Result)
    assert (answer.request, answer.layer) == (work.request, work.layer)
    outputs = expected(work.rows.view(np.float32), work.pair_rows, work.pair_ids)
    assert answer.outputs.astype(np.float32).tobytes() == outputs.tobytes()


def test_it_works() -> None:
    async def test() -> None:
        desk = Desk(FakeExperts(0))
        desk.queue.start()
        work = dispatch(1)
        desk.submit("a", work)
        await desk.all_answers()
        check(work, desk.answers[0][1])
        desk.queue.stop()

    run(test)


def test_jobs_of_one_layer_that_wait_are_computed_together_with_the_same_bits() -> None:
    async def test() -> None:
        layers = FakeExperts(0), FakeExperts(1)
        desk = Desk(*layers)
        works = [dispatch(i, layer=i % 2, n_rows=1 + i % 3) for i in range(1, 9)]
        for work in works:
            desk.submit(f"client {work.request % 3}", work)
        desk.queue.start()
        await desk.all_answers()
        assert sorted(len(layer.calls) for layer in layers) == [1, 1]
        by_request = {answer.request: answer for _, answer in desk.answers}
        for work in works:
            check(work, by_request[work.request])
        desk.queue.stop()

    run(test)


def test_a_batch_is_bounded_but_one_job_always_fits() -> None:
    async def test() -> None:
        layer = FakeExperts(0)
        desk = Desk(layer, max_batch_bytes=4 * D_MODEL * 5)
        for request, n_rows in enumerate((9, 2, 2, 2, 1), start=1):
            desk.submit("a", dispatch(request, n_rows=n_rows))
        desk.queue.start()
        await desk.all_answers()
        assert layer.calls == [9, 5, 2]
        desk.queue.stop()

    run(test)


def test_clients_take_turns() -> None:
    async def test() -> None:
        layer = FakeExperts(0)
        desk = Desk(layer, max_batch_bytes=1)
        for request in range(1, 4):
            desk.submit("greedy", dispatch(request))
        desk.submit("modest", dispatch(9))
        desk.queue.start()
        assert await desk.all_answers() == [("greedy", 1), ("modest", 9), ("greedy", 2), ("greedy", 3)]
        desk.queue.stop()

    run(test)


def test_the_loop_stays_free_while_experts_are_computed() -> None:
    async def test() -> None:
        layer = FakeExperts(0)
        layer.may_go.clear()
        desk = Desk(layer)
        desk.queue.start()
        desk.submit("a", dispatch(1))
        async with asyncio.timeout(20):
            while not layer.calls:
                await asyncio.sleep(0)
        desk.submit("b", dispatch(2))
        desk.submit("c", dispatch(3))
        desk.queue.forget("b")
        assert desk.answers == []
        layer.may_go.set()
        assert await desk.all_answers(2) == [("a", 1), ("c", 3)]
        assert layer.calls == [2, 2]
        desk.queue.stop()

    run(test)


def test_bad_rows_fail_their_own_job_only() -> None:
    layer = FakeExperts(0)
    works = [dispatch(1), dispatch(2, value=np.nan), dispatch(3)]
    answers = compute_batch(layer, [Job("x", work, lambda _: None) for work in works])
    check(works[0], answers[0])
    check(works[2], answers[2])
    assert answers[1] == Fault(2, FaultCode.BAD_ROWS, "a row is not finite")


def test_a_defect_is_answered_and_the_queue_lives_on() -> None:
    async def test() -> None:
        layer = FakeExperts(0)
        layer.is_broken = True
        desk = Desk(layer)
        desk.queue.start()
        desk.submit("a", dispatch(1))
        await desk.all_answers()
        assert desk.answers[0][1] == Fault(1, FaultCode.INTERNAL, "ZeroDivisionError: a defect")
        layer.is_broken = False
        desk.submit("a", dispatch(2))
        await desk.all_answers()
        assert isinstance(desk.answers[1][1], Result)
        desk.queue.stop()

    run(test)


def test_f16_is_answered_only_where_it_was_asked_and_fits() -> None:
    works = [dispatch(1), dispatch(2, reply=ReplyType.F16), dispatch(3, value=1e5, reply=ReplyType.F16)]
    answers = compute_batch(FakeExperts(0), [Job("x", work, lambda _: None) for work in works])
    assert all(isinstance(answer, Result) for answer in answers)
    assert [answer.outputs.dtype for answer in answers if isinstance(answer, Result)] == ["f4", "f2", "f4"]
    check(works[1], answers[1])


# Sums


def for_sums(work: Dispatch, exponent: int = -6) -> Dispatch:
    """The same, but for sums: pair i has weight 1 / (i + 1)."""
    weights = (1 / np.arange(1, len(work.pair_ids) + 1)).astype(np.float32)
    return dataclasses.replace(work, sums=SumOrder(weights, np.full(len(work.rows), exponent, np.int32)))


def check_sums(work: Dispatch, answer: Answer) -> None:
    assert isinstance(answer, SumResult)
    assert work.sums is not None
    assert (answer.request, answer.layer, answer.n_pairs) == (work.request, work.layer, len(work.pair_ids))
    outputs = expected(work.rows.view(np.float32), work.pair_rows, work.pair_ids)
    wanted = sum_outputs(outputs, work.sums.weights, work.pair_rows, work.sums.exponents)
    assert answer.sums.any()
    assert answer.sums.tolist() == wanted.tolist()


def test_sums_and_outputs_are_computed_together_each_in_its_own_form() -> None:
    layer = FakeExperts(0)
    works = [dispatch(1), for_sums(dispatch(2, n_rows=3)), dispatch(3, reply=ReplyType.F16), for_sums(dispatch(4))]
    answers = compute_batch(layer, [Job("x", work, lambda _: None) for work in works])
    assert layer.calls == [9]
    check(works[0], answers[0])
    check(works[2], answers[2])
    for i in (1, 3):
        check_sums(works[i], answers[i])


def test_sums_never_need_more_outputs_at_once_than_a_batch_may_have() -> None:
    async def test() -> None:
        layer, row_bytes = FakeExperts(0), 4 * D_MODEL
        work = for_sums(dispatch(1, n_rows=3))
        pair_rows = np.repeat(np.arange(3, dtype=np.int32), 4)
        work = dataclasses.replace(work, pair_rows=pair_rows, pair_ids=np.arange(12, dtype=np.int32) % 8)
        work = for_sums(work)
        desk = Desk(layer, max_batch_bytes=5 * row_bytes + row_bytes - 1)
        desk.submit("a", work)
        desk.queue.start()
        await desk.all_answers()
        assert layer.calls == [5, 5, 2]
        check_sums(work, desk.answers[0][1])
        desk.queue.stop()

    run(test)


def test_bad_rows_of_sums_fail_their_own_job_only() -> None:
    works = [for_sums(dispatch(1)), for_sums(dispatch(2, value=np.nan)), for_sums(dispatch(3))]
    answers = compute_batch(FakeExperts(0), [Job("x", work, lambda _: None) for work in works])
    check_sums(works[0], answers[0])
    check_sums(works[2], answers[2])
    assert answers[1] == Fault(2, FaultCode.BAD_ROWS, "a row is not finite")
