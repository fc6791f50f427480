"""A swarm in one process: the dispatcher's transport over emulated workers and links, on a controlled clock.

Frames are encoded and decoded as on a socket, at the backbone's cost; ways, queues and losses are modelled, and answers
are computed by the real kernel for free, so texts are those of a real swarm. Not modelled: sockets, relays, TLS and the
thread that serves them (`bench_overhead` measures these), the handshake, and a second core of the backbone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.measured import Measured, WorkerMeter
from backbone.engine.swarm.placement import ReplicaMap
from backbone.engine.swarm.worker_health import Health
from benchmarks.emulator.answers import AnswerBook
from benchmarks.emulator.classes import LinkClass, Port, WorkerClass
from benchmarks.emulator.clock import CpuLoop
from benchmarks.emulator.worker import EmulatedWorker
from kvasir.errors import EdgeError, EdgeTimeout
from kvasir.experts import ExpertRange
from kvasir.wire.codec import FrameDecoder, encode
from kvasir.wire.frames import Dispatch, Result, SumResult
from kvasir.wire.header import PROTOCOL_LIMITS
from kvasir.wire.split import Answer, DispatchPart, ExpertCall, split_dispatch

BACKBONE_BYTES_S = 1e9 / 8


@dataclass(slots=True, eq=False)
class _Call:
    """A dispatch under way: its answer is put together from several parts."""

    future: Future[Answer]
    answer: Answer
    n_left: int
    expiry: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _Member:
    """One worker as the backbone sees it."""

    worker: EmulatedWorker
    meter: WorkerMeter
    decoder: FrameDecoder
    calls: dict[int, tuple[_Call, DispatchPart]]
    health: Health
    is_connected: bool = True
    n_sent: int = 0


class EmulatedSwarm:
    """Implements `Transport`. Make it and use it on its loop."""

    def __init__(
        self,
        loop: CpuLoop,
        store: ExpertStore,
        held: Mapping[str, tuple[ExpertRange, ...]],
        kind: WorkerClass,
        link: LinkClass,
        *,
        answers: AnswerBook | None = None,
        backbone_bytes_s: float = BACKBONE_BYTES_S,
        seed: int = 0,
    ) -> None:
        """`held` says what each worker has; `backbone_bytes_s` is what its own line carries, each way.

        `answers` may be shared with other swarms over the same store.
        """
        answers = answers or AnswerBook()
        self._loop = loop
        self._d_model = store.card.d_model
        self._link = link
        self._rng = np.random.default_rng(seed)
        self.ports = (Port(backbone_bytes_s), Port(backbone_bytes_s))
        self._members: dict[str, _Member] = {}
        self._arrival: float | None = None  # of the answer that is being taken up
        for name, ranges in held.items():
            on_answer = partial(self._received, name)
            worker = EmulatedWorker(loop, store, ranges, kind, link, self.ports, answers, self._rng, on_answer)
            self._members[name] = _Member(worker, WorkerMeter(self._clock), FrameDecoder(), {}, Health())
            self._wait_for_loss(name)
        self.n_losses = 0
        self._publish()

    @property
    def workers_busy_s(self) -> dict[str, float]:
        """Seconds that each worker has computed."""
        return {name: member.worker.busy_s for name, member in self._members.items()}

    def coverage(self) -> ReplicaMap:
        """Return what the connected workers hold."""
        return self._coverage

    def live(self) -> frozenset[str]:
        """Workers that are connected and not left out."""
        now = self._loop.time()
        return frozenset(name for name, m in self._members.items() if m.is_connected and m.health.is_live(now))

    def measurements(self) -> Mapping[str, Measured]:
        """Return how fast each worker answers."""
        return {name: replace(m.meter.measured, share=m.health.share) for name, m in self._members.items()}

    def node_of(self, worker_id: str) -> str:
        """Return the worker's id: no worker has a node."""
        return worker_id

    def report(self, worker_id: str, reason: str) -> None:
        """Leave a worker out for a while."""
        member = self._members[worker_id]
        member.health = member.health.after_failure(self._loop.time(), reason)

    def dispatch(self, worker_id: str, asked: ExpertCall, deadline_s: float) -> Future[Answer]:
        """See Transport."""
        member = self._members[worker_id]
        if not member.is_connected:
            raise EdgeError(f"worker {worker_id} is not connected")
        d_model, pairs = self._d_model, (asked.pair_rows, asked.pair_ids)
        parts = split_dispatch(asked.rows, *pairs, d_model, PROTOCOL_LIMITS, asked.sums)
        call = _Call(Future(), asked.empty_answer(d_model), len(parts))
        n_pairs = sum(len(part.pair_ids) for part in parts)
        call.future.add_done_callback(member.meter.start(n_pairs, sum(part.rows.nbytes for part in parts)))
        for number, part in enumerate(parts, 1):
            member.n_sent += 1
            member.calls[member.n_sent] = call, part
            frame = Dispatch(
                member.n_sent,
                asked.layer,
                asked.row_format,
                d_model,
                part.rows,
                part.pair_rows,
                part.pair_ids,
                has_more=number < len(parts),
                sums=part.sums,
            )
            member.worker.send(b"".join(encode(frame)))
        late = EdgeTimeout(f"worker {worker_id}, layer {asked.layer}: no result within {deadline_s} s")
        call.expiry = self._loop.call_later(deadline_s, _fail, call, late)
        return call.future

    def _clock(self) -> float:
        """For the meters: a pool's own thread notes when an answer came, also while the engine computes."""
        return self._loop.time() if self._arrival is None else self._arrival

    def _received(self, worker_id: str, data: bytes, at: float) -> None:
        member, self._arrival = self._members[worker_id], at
        for frame in member.decoder.feed(data):
            if not isinstance(frame, Result | SumResult):
                raise RuntimeError(f"worker {worker_id} answered {frame}")
            call, part = member.calls.pop(frame.request)
            if isinstance(frame, SumResult):
                call.answer[part.first_row : part.first_row + len(part.rows)] = frame.sums
            else:
                call.answer[part.pairs] = frame.outputs
            call.n_left -= 1
            if call.n_left == 0 and not call.future.done():
                member.health = member.health.after_success()
                _end_expiry(call)
                call.future.set_result(call.answer)
        self._arrival = None

    def _wait_for_loss(self, worker_id: str) -> None:
        if np.isfinite(self._link.lose_after_s):
            self._loop.call_later(float(self._rng.exponential(self._link.lose_after_s)), self._lose, worker_id)

    def _lose(self, worker_id: str) -> None:
        """The connection breaks: what is under way fails, and the worker is gone until it has dialled again."""
        member = self._members[worker_id]
        self.n_losses += 1
        member.worker.lose()
        member.is_connected = False
        calls, member.calls = member.calls, {}
        self._publish()
        for call, _ in calls.values():
            _fail(call, EdgeError(f"worker {worker_id}: connection lost"))
        self._loop.call_later(self._link.lost_for_s, self._come_back, worker_id)

    def _come_back(self, worker_id: str) -> None:
        member = self._members[worker_id]
        member.is_connected, member.decoder = True, FrameDecoder()
        self._publish()
        self._wait_for_loss(worker_id)

    def _publish(self) -> None:
        self._coverage = ReplicaMap.build(
            {name: member.worker.ranges for name, member in self._members.items() if member.is_connected}
        )


def _fail(call: _Call, error: EdgeError) -> None:
    _end_expiry(call)
    if not call.future.done():
        call.future.set_exception(error)


def _end_expiry(call: _Call) -> None:
    if call.expiry is not None:
        call.expiry.cancel()
