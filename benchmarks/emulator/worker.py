"""One emulated worker behind its link: real frames in, right answers out, at the times that its classes give.

`emulator` owns one for each worker. Frames are decoded, computed by the worker's own code on the backbone's kernel, and
encoded, all of it for free: the worker has its own machine. It does not model batching of waiting frames of one layer,
throttling, or a page that is hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from backbone.engine.swarm.expert_store import ExpertStore
from benchmarks.emulator.answers import AnswerBook
from benchmarks.emulator.classes import Flight, LinkClass, Port, WorkerClass
from benchmarks.emulator.clock import CpuLoop
from kvasir.experts import ExpertRange, FloatRows
from kvasir.kernels.api import EncodedRows, LoadedExperts, Pairs
from kvasir.wire.codec import decode, encode
from kvasir.wire.frames import Dispatch
from kvasir.worker.serving.compute import Job, compute_batch


class HeldExperts:
    """The backbone's experts of a layer under a worker's local ids."""

    def __init__(self, whole: LoadedExperts, expert_ids: list[int], answers: AnswerBook) -> None:
        self._whole = whole
        self._answers = answers
        self._expert_ids = np.asarray(expert_ids, np.int32)
        self.layer = whole.layer
        self.n_expert = len(expert_ids)
        self.d_model = whole.d_model

    def compute(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> FloatRows:
        """See LoadedExperts."""
        return self._answers.outputs(self._whole, rows, pair_rows, self._expert_ids[pair_ids])


class EmulatedWorker:
    """Takes a frame's bytes, and hands the answer's and their time of arrival to `on_answer`.

    The time is the model's: while the backbone computes, answers arrive, but are taken up only afterwards.
    """

    def __init__(
        self,
        loop: CpuLoop,
        store: ExpertStore,
        ranges: Iterable[ExpertRange],
        kind: WorkerClass,
        link: LinkClass,
        ports: tuple[Port, Port],
        answers: AnswerBook,
        rng: np.random.Generator,
        on_answer: Callable[[bytes, float], None],
    ) -> None:
        """`ports` are the backbone's, out and in, which all workers share."""
        self._loop = loop
        self._kind = kind
        self._backbone_out, self._backbone_in = ports
        self._down, self._up = Port(link.to_worker), Port(link.to_backbone)
        self._there, self._back = Flight(link, rng), Flight(link, rng)
        self._is_free_at = 0.0
        self._on_answer = on_answer
        self._connection = 0
        self.ranges = tuple(sorted(ranges))
        self.busy_s = 0.0
        held: dict[int, list[int]] = {}
        for part in self.ranges:
            held.setdefault(part.layer, []).extend(range(part.start, part.stop))
        self._experts = {layer: HeldExperts(store.layer(layer), ids, answers) for layer, ids in held.items()}

    def send(self, data: bytes) -> None:
        """Let a frame leave the backbone now."""
        with self._loop.free():
            gone_at = self._down.passed(self._backbone_out.passed(self._loop.time(), len(data)), len(data))
            self._at(self._there.arrival(gone_at), self._receive, data)

    def lose(self) -> None:
        """Forget everything that is under way, both ways."""
        self._connection += 1

    def _at(self, when: float, act: Callable[[bytes, float], None], data: bytes) -> None:
        self._loop.call_at(when, partial(self._if_connected, self._connection, act, data, when))

    def _if_connected(self, connection: int, act: Callable[[bytes, float], None], data: bytes, when: float) -> None:
        if connection == self._connection:
            act(data, when)

    # `now` is when it happens there: the loop may come to it later, when the backbone has computed

    def _receive(self, data: bytes, now: float) -> None:
        with self._loop.free():
            dispatch = decode(data)
            assert isinstance(dispatch, Dispatch)
            (answer,) = compute_batch(self._experts[dispatch.layer], [Job(self, dispatch, lambda _: None)])
            took_s = self._kind.call_s + self._kind.pair_s * len(dispatch.pair_ids)
            self.busy_s += took_s
            self._is_free_at = max(now, self._is_free_at) + took_s
            self._at(self._is_free_at, self._leave, b"".join(encode(answer)))

    def _leave(self, data: bytes, now: float) -> None:
        with self._loop.free():
            self._at(self._back.arrival(self._up.passed(now, len(data))), self._reach, data)

    def _reach(self, data: bytes, now: float) -> None:
        with self._loop.free():
            self._at(self._backbone_in.passed(now, len(data)), self._on_answer, data)
