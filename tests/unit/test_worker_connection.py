"""One backbone's connection at the worker: who is let in, what is computed, and how everything else is answered."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from kvasir.edge.link import TcpLink
from kvasir.kernels.api import RowFormat
from kvasir.wire.codec import encode, join
from kvasir.wire.frames import (
    Dispatch,
    Fault,
    FaultCode,
    Frame,
    Goaway,
    Hello,
    Pause,
    Ping,
    Pong,
    Refuse,
    RefuseCode,
    Result,
    Role,
    SumOrder,
    SumResult,
    Welcome,
)
from kvasir.wire.header import HEADER, Limits, sums_bytes
from kvasir.wire.split import result_bytes
from kvasir.worker.serving.compute import ComputeQueue, Job
from kvasir.worker.serving.config import Deadlines
from kvasir.worker.serving.connection import Connection, Registry, Service
from kvasir.worker.serving.watch import Moments, overdue
from tests.unit.fake_experts import D_MODEL, KERNEL, MODEL, FakeExperts, fake_holdings
from tests.unit.virtual_time import Socket, VirtualLoop, run, settle

HELLO = Hello(Role.BACKBONE, MODEL, KERNEL, "fake")
OTHER = "0c" * 32
COST = 4 * D_MODEL + result_bytes(1, D_MODEL)


class Queue(ComputeQueue):
    """Collects jobs; the test answers them."""

    def __init__(self) -> None:
        super().__init__({})
        self.jobs: list[Job] = []

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def forget(self, client: object) -> None:
        self.jobs = [job for job in self.jobs if job.client is not client]

    def answer(self) -> None:
        job = self.jobs.pop(0)
        asked = job.dispatch
        if asked.sums is not None:
            sums = np.full((len(asked.rows), asked.d_model), 5, np.int32)
            job.answer(SumResult(asked.request, asked.layer, job.n_pairs, sums))
            return
        job.answer(Result(asked.request, asked.layer, np.zeros((job.n_pairs, D_MODEL), np.float32)))


class Worker(Registry):
    """A connection with everything around it; `socket` is its backbone's end."""

    def __init__(
        self, loop: VirtualLoop, limits: Limits, says_hello: bool = True, experts: FakeExperts | None = None
    ) -> None:
        super().__init__(max_clients=8)
        self.refusal_now: Refuse | None = None
        self.queue = Queue()
        self.connection = Connection(Service(fake_holdings(experts or FakeExperts(2)), self.queue, limits), self, 1)
        assert isinstance(self.connection.link, TcpLink)
        self.socket = Socket(self.connection.link, loop)
        if says_hello:
            self.socket.send(HELLO)

    def refusal(self) -> Refuse | None:
        return self.refusal_now

    def connection_changed(self, connection: Connection) -> None:
        assert connection is self.connection

    @property
    def said(self) -> Frame:
        """The last frame that the worker sent."""
        return self.socket.frames[-1]


def with_worker(
    test: Callable[[Worker], Coroutine[Any, Any, None]],
    limits: Limits | None = None,
    says_hello: bool = True,
    experts: FakeExperts | None = None,
) -> None:
    async def main(loop: VirtualLoop) -> None:
        await test(Worker(loop, limits or Limits(), says_hello, experts))

    run(main)


def ask(request: int = 1, layer: int = 2, n_pairs: int = 1, has_more: bool = False, **changes: Any) -> Dispatch:
    rows, pairs = np.zeros((n_pairs, 4 * D_MODEL), np.uint8), np.arange(n_pairs, dtype=np.int32) % 8
    values: dict[str, Any] = {
        "row_format": RowFormat.F32,
        "d_model": D_MODEL,
        "rows": rows,
        "pair_rows": pairs,
        "pair_ids": pairs,
        **changes,
    }
    return Dispatch(request, layer, has_more=has_more, **values)


def test_it_works() -> None:
    async def test(worker: Worker) -> None:
        assert isinstance(worker.said, Welcome)
        assert (worker.said.model_fingerprint, worker.said.kernel_fingerprint) == (MODEL, KERNEL)
        assert worker.said.ranges == fake_holdings(FakeExperts(2)).ranges
        worker.socket.send(ask(5))
        worker.queue.answer()
        assert isinstance(worker.said, Result)
        assert worker.said.request == 5
        assert not worker.connection.owes
        worker.socket.send(Ping(9))
        assert worker.said == Pong(9)

    with_worker(test)


# Handshake


@pytest.mark.parametrize(
    ("first", "code", "message"),
    [
        (Hello(Role.WORKER, MODEL, KERNEL, "fake"), RefuseCode.ROLE, "role is WORKER, this worker serves BACKBONE"),
        (Hello(Role.BACKBONE, OTHER, KERNEL, "fake"), RefuseCode.MODEL, f"{OTHER}, this worker's slice is of {MODEL}"),
        (Hello(Role.BACKBONE, MODEL, OTHER, "kx1"), RefuseCode.KERNEL, f"kx1 {OTHER}, this worker has fake {KERNEL}"),
        (Ping(1), RefuseCode.MALFORMED, "the first frame is Ping"),
        (Pause(1), RefuseCode.MALFORMED, "the first frame is Pause"),
    ],
)
def test_who_does_not_belong_here_is_told_why(first: Frame, code: RefuseCode, message: str) -> None:
    async def test(worker: Worker) -> None:
        worker.socket.send(first)
        assert isinstance(worker.said, Refuse)
        assert worker.said.code is code
        assert message in worker.said.message
        await settle()
        assert worker.socket.is_closing()

    with_worker(test, says_hello=False)


def test_a_full_worker_refuses() -> None:
    async def test(worker: Worker) -> None:
        worker.refusal_now = Refuse(RefuseCode.FULL, "2 of 2")
        worker.socket.send(HELLO)
        assert worker.said == Refuse(RefuseCode.FULL, "2 of 2")

    with_worker(test, says_hello=False)


def other_version() -> bytes:
    data = bytearray(join(encode(HELLO)))
    data[4] = 9
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (b"GET / HTTP/1.1\r\nHost: kvasir\r\n\r\n     ", RefuseCode.MALFORMED, "starts with b'GET '"),
        (other_version(), RefuseCode.VERSION, "wire version 9 from the other side, this side speaks 2"),
        (bytes(100), RefuseCode.MALFORMED, "starts with"),
        (HEADER.pack(b"KVSR", 2, 1, 0, 0, 0, 0, 0, 0, 0, 4097, 0), RefuseCode.MALFORMED, "limit of 4096"),
        (HEADER.pack(b"KVSR", 2, 4, 1, 0, 1, 0, 400, 1, 4, 6408, 0), RefuseCode.MALFORMED, "limit of 4096"),
        (join(encode(HELLO))[:-1] + b"\x01", RefuseCode.MALFORMED, "checksum"),
    ],
)
def test_bytes_that_are_no_hello_are_refused(data: bytes, code: RefuseCode, message: str) -> None:
    async def test(worker: Worker) -> None:
        worker.socket.send_bytes(data)
        assert isinstance(worker.said, Refuse)
        assert worker.said.code is code
        assert message in worker.said.message
        assert not worker.connection.is_welcome

    with_worker(test, says_hello=False)


# Requests


@pytest.mark.parametrize(
    ("dispatch", "code", "message"),
    [
        (ask(layer=3), FaultCode.UNKNOWN_LAYER, "layer 3 is not held here; 2 are"),
        (ask(pair_ids=np.array([8], np.int32)), FaultCode.BAD_IDS, "local id 8 does not exist, there are 8"),
        (ask(pair_ids=np.array([-1], np.int32)), FaultCode.BAD_IDS, "local id 4294967295 does not exist"),
        (ask(pair_rows=np.array([1], np.int32)), FaultCode.BAD_IDS, "row number 1 does not exist, there are 1"),
        (ask(pair_rows=np.array([-(2**31)], np.int32)), FaultCode.BAD_IDS, "row number 2147483648 does not exist"),
        (ask(d_model=3, rows=np.zeros((1, 12), np.uint8)), FaultCode.BAD_ROWS, "F32 of 3 values, F32 of 4 are needed"),
        (
            ask(row_format=RowFormat.KX1, d_model=256, rows=np.zeros((1, 261), np.uint8)),
            FaultCode.BAD_ROWS,
            "KX1 of 256 values",
        ),
    ],
)
def test_a_request_that_cannot_be_computed_is_answered(dispatch: Dispatch, code: FaultCode, message: str) -> None:
    async def test(worker: Worker) -> None:
        worker.socket.send(dispatch)
        assert isinstance(worker.said, Fault)
        assert (worker.said.request, worker.said.code) == (1, code)
        assert message in worker.said.message
        assert worker.queue.jobs == []
        worker.socket.send(ask(2))
        assert len(worker.queue.jobs) == 1

    with_worker(test)


def test_an_answer_over_the_backbones_limits_is_not_computed() -> None:
    async def test(worker: Worker) -> None:
        limits = Limits(max_payload_bytes=result_bytes(3, D_MODEL), max_pairs=4)
        worker.socket.send(Hello(Role.BACKBONE, MODEL, KERNEL, "fake", limits))
        worker.socket.send(ask(1, n_pairs=3), ask(2, n_pairs=4))
        assert isinstance(worker.said, Fault)
        assert (worker.said.request, worker.said.code) == (2, FaultCode.TOO_LARGE)
        assert [job.dispatch.request for job in worker.queue.jobs] == [1]

    with_worker(test, says_hello=False)


@pytest.mark.parametrize(
    "frame", [HELLO, Pause(1), Refuse(RefuseCode.FULL, ""), Fault(1, FaultCode.BAD_IDS, ""), ask(1)]
)
def test_frames_out_of_place_end_the_connection_with_a_reason(frame: Frame) -> None:
    async def test(worker: Worker) -> None:
        worker.socket.send(ask(3))
        worker.socket.send_bytes(join(encode(frame))[:-1] + b"\xff" if isinstance(frame, Dispatch) else b"")
        if not isinstance(frame, Dispatch):
            worker.socket.send(frame)
        assert isinstance(worker.said, Fault)
        assert (worker.said.request, worker.said.code) == (0, FaultCode.PROTOCOL)
        assert worker.queue.jobs == []  # nobody waits for them any more
        await settle()
        assert worker.socket.is_closing()

    with_worker(test)


def test_goodbyes_and_pongs_from_a_backbone_are_fine() -> None:
    async def test(worker: Worker) -> None:
        worker.socket.send(Goaway("bye"), Pong(1))
        assert isinstance(worker.said, Welcome)
        assert not worker.socket.is_closing()

    with_worker(test)


def test_what_a_lost_backbone_asked_for_is_forgotten() -> None:
    async def test(worker: Worker) -> None:
        worker.socket.send(ask(1), ask(2))
        begun = worker.queue.jobs[0]
        worker.socket.hang_up()
        await settle()
        assert worker.queue.jobs == []
        begun.answer(Result(1, 2, np.zeros((1, D_MODEL), np.float32)))  # was being computed: no harm
        assert not worker.connection.owes

    with_worker(test)


# Bounds


def test_who_asks_for_more_than_allowed_is_not_read_until_answers_went_out() -> None:
    async def test(worker: Worker) -> None:
        worker.socket.send(*(ask(i) for i in range(1, 5)))
        assert [job.dispatch.request for job in worker.queue.jobs] == [1, 2]
        assert not worker.socket.reads
        worker.queue.answer()
        assert [job.dispatch.request for job in worker.queue.jobs] == [2, 3]
        assert not worker.socket.reads
        worker.queue.answer()
        assert worker.socket.reads
        worker.queue.answer()
        worker.queue.answer()
        assert [frame.request for frame in worker.socket.frames if isinstance(frame, Result)] == [1, 2, 3, 4]
        assert not worker.connection.owes

    with_worker(test, Limits(max_inflight_bytes=2 * COST))


def test_answers_that_nobody_reads_count_as_under_way() -> None:
    async def test(worker: Worker) -> None:
        worker.socket.is_stuck = True
        worker.socket.send(ask(1), ask(2))
        worker.queue.answer()  # into the transport
        worker.queue.answer()  # waits in the link
        worker.socket.send(ask(3), ask(4))
        assert [job.dispatch.request for job in worker.queue.jobs] == [3]
        worker.queue.answer()
        assert worker.queue.jobs == []
        assert not worker.socket.reads
        while not worker.queue.jobs:
            worker.socket.drain()
        assert [job.dispatch.request for job in worker.queue.jobs] == [4]
        assert worker.socket.reads

    with_worker(test, Limits(max_inflight_bytes=3 * COST))


def test_parts_that_announce_more_are_queued_together() -> None:
    async def test(worker: Worker) -> None:
        worker.socket.send(ask(1, has_more=True), ask(2, has_more=True))
        assert worker.queue.jobs == []
        assert not worker.connection.moments.owes  # a backbone that never sends the rest is idle
        worker.socket.send(ask(3))
        assert [job.dispatch.request for job in worker.queue.jobs] == [1, 2, 3]
        assert worker.connection.moments.owes

    with_worker(test)


def test_announced_parts_do_not_wait_for_what_the_budget_keeps_out() -> None:
    async def test(worker: Worker) -> None:
        worker.socket.send(*(ask(i, has_more=True) for i in range(1, 4)))
        assert [job.dispatch.request for job in worker.queue.jobs] == [1, 2]

    with_worker(test, Limits(max_inflight_bytes=2 * COST))


# Sums


class WideExperts(FakeExperts):
    """Experts whose rows are wide enough for sums."""

    d_model = 256


def ask_sums(request: int = 1, named: tuple[int, ...] = (0,), n_rows: int = 1, **changes: Any) -> Dispatch:
    """A dispatch for sums; `named` are the rows of its pairs."""
    pairs = np.array(named, np.int32)
    values: dict[str, Any] = {
        "weights": np.ones(len(pairs), np.float32), "exponents": np.zeros(n_rows, np.int32), "pair_rows": pairs,
        "pair_ids": np.arange(len(pairs), dtype=np.int32) % 8, "has_more": False, "layer": 2, **changes,
    }  # fmt: skip
    order = SumOrder(values.pop("weights"), values.pop("exponents"))
    rows = np.zeros((n_rows, 4 * WideExperts.d_model), np.uint8)
    return Dispatch(request, row_format=RowFormat.F32, d_model=WideExperts.d_model, rows=rows, sums=order, **values)


def test_a_dispatch_for_sums_is_answered_with_sums() -> None:
    async def test(worker: Worker) -> None:
        worker.socket.send(ask_sums(7, named=(0, 2, 2), n_rows=3))
        worker.queue.answer()
        assert isinstance(worker.said, SumResult)
        assert (worker.said.request, worker.said.layer, worker.said.n_pairs) == (7, 2, 3)
        assert worker.said.sums.tolist() == [[5] * 256] * 3
        assert not worker.connection.owes

    with_worker(test, experts=WideExperts(2))


@pytest.mark.parametrize(
    ("dispatch", "code", "message"),
    [
        (ask_sums(weights=np.array([np.nan], np.float32)), FaultCode.BAD_ROWS, "weight 0 is not finite"),
        (ask_sums(weights=np.array([-np.inf], np.float32)), FaultCode.BAD_ROWS, "weight 0 is not finite"),
        (
            ask_sums(exponents=np.array([-181], np.int32)),
            FaultCode.BAD_ROWS,
            "-181 to -181; they must be from -180 to 127",
        ),
        (ask_sums(exponents=np.array([128], np.int32)), FaultCode.BAD_ROWS, "128 to 128"),
        (ask_sums(named=(0,) * 32), FaultCode.BAD_ROWS, "a row has 32 pairs; sums hold at most 31"),
        (ask_sums(pair_ids=np.array([8], np.int32)), FaultCode.BAD_IDS, "local id 8"),
        (ask_sums(named=(1,)), FaultCode.BAD_IDS, "row number 1"),
        (ask_sums(named=(-1,)), FaultCode.BAD_IDS, "row number 4294967295"),
        (ask_sums(layer=3), FaultCode.UNKNOWN_LAYER, "layer 3"),
    ],
)
def test_sums_that_nobody_can_compute_are_refused(dispatch: Dispatch, code: FaultCode, message: str) -> None:
    async def test(worker: Worker) -> None:
        worker.socket.send(dispatch)
        assert isinstance(worker.said, Fault)
        assert (worker.said.request, worker.said.code) == (1, code)
        assert message in worker.said.message
        assert worker.queue.jobs == []
        worker.socket.send(ask_sums(2, named=(0,) * 31))
        assert len(worker.queue.jobs) == 1

    with_worker(test, experts=WideExperts(2))


@pytest.mark.parametrize(
    ("limits", "is_taken"),
    [
        (Limits(sums_bytes(2, 256), 2, 5), True),
        (Limits(sums_bytes(2, 256) - 1, 2, 5), False),
        (Limits(sums_bytes(2, 256), 1, 5), False),
        (Limits(sums_bytes(2, 256), 2, 4), False),
    ],
)
def test_sums_that_may_be_over_the_backbones_limits_are_not_computed(limits: Limits, is_taken: bool) -> None:
    async def test(worker: Worker) -> None:
        worker.socket.send(Hello(Role.BACKBONE, MODEL, KERNEL, "fake", limits))
        worker.socket.send(ask_sums(1, named=(0, 1, 1, 1, 0), n_rows=2))
        assert len(worker.queue.jobs) == is_taken
        if not is_taken:
            assert isinstance(worker.said, Fault)
            assert worker.said.code is FaultCode.TOO_LARGE

    with_worker(test, says_hello=False, experts=WideExperts(2))


@pytest.mark.parametrize(("spare", "n_taken"), [(0, 2), (-1, 1)])
def test_sums_count_as_under_way_with_the_most_that_they_may_have(spare: int, n_taken: int) -> None:
    async def test(worker: Worker) -> None:
        worker.socket.send(*(ask_sums(i, named=(0,) * 31) for i in range(1, 4)))
        assert [job.dispatch.request for job in worker.queue.jobs] == list(range(1, n_taken + 1))
        for _ in range(3):
            worker.queue.answer()
        assert [frame.request for frame in worker.socket.frames if isinstance(frame, SumResult)] == [1, 2, 3]

    with_worker(test, Limits(max_inflight_bytes=2 * (1024 + sums_bytes(1, 256)) + spare), experts=WideExperts(2))


# The watch


def moments(**changes: Any) -> Moments:
    values: dict[str, Any] = {
        "opened": 0,
        "is_welcome": True,
        "last_received": 0,
        "frame_began": None,
        "last_sent": 0,
        "has_unsent": False,
        "owes": False,
    }
    return Moments(**(values | changes))


@pytest.mark.parametrize(
    ("now", "seen", "reason"),
    [
        (4.9, moments(is_welcome=False), None),
        (5.0, moments(is_welcome=False, last_received=5), "no hello within 5 s"),
        (59.9, moments(), None),
        (60.0, moments(), "nothing received for 60 s"),
        (60.0, moments(owes=True), None),
        (60.0, moments(last_received=1), None),
        (60.0, moments(last_received=60, frame_began=0), "a frame was not complete within 60 s"),
        (60.0, moments(last_received=60, frame_began=1), None),
        (29.9, moments(has_unsent=True), None),
        (30.0, moments(has_unsent=True, owes=True), "answers were not read for 30 s"),
        (30.0, moments(has_unsent=True, last_sent=1), None),
    ],
)
def test_the_watch_ends_what_takes_too_long(now: float, seen: Moments, reason: str | None) -> None:
    assert overdue(now, seen, Deadlines()) == reason


def test_a_connection_that_trickles_is_seen_as_one_unfinished_frame() -> None:
    async def test(worker: Worker) -> None:
        began = worker.connection.moments.last_received
        loop = worker.connection._loop
        for byte in join(encode(ask(1)))[:20]:
            worker.socket.send_bytes(bytes([byte]))
            await settle()
            assert worker.connection.moments.frame_began == began == loop.time()
        worker.connection.end("too slow")
        assert worker.said == Fault(0, FaultCode.PROTOCOL, "too slow")

    with_worker(test)


def test_a_stranger_that_says_nothing_is_told_about_the_deadline() -> None:
    async def test(worker: Worker) -> None:
        worker.connection.end("no hello within 5 s")
        assert worker.said == Refuse(RefuseCode.DEADLINE, "no hello within 5 s")
        worker.connection.end("again")
        assert len(worker.socket.frames) == 1

    with_worker(test, says_hello=False)
