"""The queue between connections and the kernel: one computation at a time, in a thread of its own.

Connections submit jobs and are called back on the event loop. Backbones take turns. Waiting jobs of the same layer are
computed together, because it is cheaper to read an expert's weights once for many rows; a kernel's result for a pair
does not depend on the other pairs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np

from kvasir.errors import KernelError
from kvasir.experts import FloatRows
from kvasir.kernels.api import LoadedExperts
from kvasir.kernels.sums import RowSums, sum_outputs
from kvasir.wire.frames import Dispatch, Fault, FaultCode, ReplyType, Result, SumOrder, SumResult, clipped, f16_reply
from kvasir.wire.split import result_bytes

MAX_BATCH_BYTES = 44 * 1024 * 1024  # of outputs computed together; a single job may have more

Answer = Result | SumResult | Fault

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A checked dispatch, the client that sent it, and the callback for its answer."""

    client: Hashable
    dispatch: Dispatch
    answer: Callable[[Answer], None]

    @property
    def n_pairs(self) -> int:
        return len(self.dispatch.pair_ids)


class ComputeQueue:
    """The queue of one set of holdings. Call `start` and `stop`, and all else, on one event loop."""

    def __init__(self, layers: Mapping[int, LoadedExperts], max_batch_bytes: int = MAX_BATCH_BYTES) -> None:
        self._layers = layers
        self._max_batch_bytes = max_batch_bytes
        self._waiting: OrderedDict[Hashable, deque[Job]] = OrderedDict()  # the next client to serve is first
        self._is_busy = True  # until `start`
        self._loop: asyncio.AbstractEventLoop | None = None
        self._to_thread: SimpleQueue[list[Job] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._compute_for_ever, name="kvasir-compute", daemon=True)

    def start(self) -> None:
        """Start computing; callbacks run on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._is_busy = False
        self._next()

    def stop(self) -> None:
        """Stop computing; the batch under way is not answered."""
        self._waiting.clear()
        self._is_busy = True
        self._to_thread.put(None)

    def submit(self, job: Job) -> None:
        """Queue a job. Each connection bounds the number of its waiting jobs."""
        self._waiting.setdefault(job.client, deque()).append(job)
        if not self._is_busy and self._loop is not None:
            self._is_busy = True
            self._loop.call_soon(self._next)  # after all jobs that arrived together

    def forget(self, client: Hashable) -> None:
        """Drop the waiting jobs of a client that is gone."""
        self._waiting.pop(client, None)

    def _next(self) -> None:
        self._is_busy = bool(self._waiting)
        if self._waiting:
            self._to_thread.put(self._next_batch())

    def _computed(self, batch: Sequence[Job], answers: Sequence[Answer]) -> None:
        self._next()  # first, so that the thread computes while answers are encoded and sent
        for job, answer in zip(batch, answers, strict=True):
            job.answer(answer)

    def _compute_for_ever(self) -> None:
        while (batch := self._to_thread.get()) is not None:
            answers = compute_batch(self._layers[batch[0].dispatch.layer], batch, self._max_batch_bytes)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the answers
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(self._computed, batch, answers)
            del batch, answers  # free megabytes before the next batch arrives

    def _next_batch(self) -> list[Job]:
        """Take the oldest job of the next client, and jobs of the same layer that fit beside it."""
        client, jobs = self._waiting.popitem(last=False)
        first = jobs.popleft()
        if jobs:
            self._waiting[client] = jobs  # to the end of the queue
        layer, room = first.dispatch.layer, self._max_batch_bytes - _output_bytes(first)
        batch = [first]
        for other, others in list(self._waiting.items()):
            kept = deque[Job]()
            for job in others:
                if job.dispatch.layer == layer and _output_bytes(job) <= room:
                    batch.append(job)
                    room -= _output_bytes(job)
                else:
                    kept.append(job)
            if kept:
                self._waiting[other] = kept
            else:
                del self._waiting[other]
        return batch


def _output_bytes(job: Job) -> int:
    return result_bytes(job.n_pairs, job.dispatch.d_model)


def compute_batch(loaded: LoadedExperts, batch: Sequence[Job], max_batch_bytes: int = MAX_BATCH_BYTES) -> list[Answer]:
    """Compute the answers to jobs of one layer, in their order. Runs in the compute thread; never raises.

    For a job of sums, at most `max_batch_bytes` of outputs exist at once.
    """
    if len(batch) > 1:
        try:
            return _answers_together(loaded, batch)
        except Exception as error:  # one job is invalid: compute each alone, so that only that one fails
            log.debug("%d jobs of layer %d failed together: %s", len(batch), loaded.layer, error)
    return [_answer_alone(loaded, job.dispatch, max_batch_bytes) for job in batch]


def _answers_together(loaded: LoadedExperts, batch: Sequence[Job]) -> list[Answer]:
    dispatches = [job.dispatch for job in batch]
    first_row = np.cumsum([0, *(len(d.rows) for d in dispatches)])
    pair_rows = [d.pair_rows + np.int32(start) for d, start in zip(dispatches, first_row[:-1], strict=True)]
    outputs = loaded.compute(
        np.concatenate([d.rows for d in dispatches]),
        np.concatenate(pair_rows),
        np.concatenate([d.pair_ids for d in dispatches]),
    )
    first_pair = np.cumsum([0, *(job.n_pairs for job in batch)])
    return [_result(d, outputs[first_pair[i] : first_pair[i + 1]]) for i, d in enumerate(dispatches)]


def _answer_alone(loaded: LoadedExperts, dispatch: Dispatch, max_bytes: int) -> Answer:
    try:
        if dispatch.sums is not None:
            sums = _summed(loaded, dispatch, dispatch.sums, max_bytes)
            return SumResult(dispatch.request, dispatch.layer, len(dispatch.pair_ids), sums)
        return _result(dispatch, loaded.compute(dispatch.rows, dispatch.pair_rows, dispatch.pair_ids))
    except KernelError as error:
        return Fault(dispatch.request, FaultCode.BAD_ROWS, clipped(str(error)))
    except Exception as error:  # unexpected: log it, answer, and keep the thread alive
        log.exception("request %d of layer %d failed", dispatch.request, dispatch.layer)
        return Fault(dispatch.request, FaultCode.INTERNAL, clipped(f"{type(error).__name__}: {error}"))


def _summed(loaded: LoadedExperts, dispatch: Dispatch, order: SumOrder, max_bytes: int) -> RowSums:
    """Compute the sums of a dispatch in parts of at most `max_bytes` of outputs.

    The outputs of a few rows with many pairs would take far more memory than their sums. Integer addition is
    associative, so the bits are the same.
    """
    sums: RowSums | None = None
    step = max(max_bytes // result_bytes(1, dispatch.d_model), 1)
    for start in range(0, len(dispatch.pair_ids), step):
        part = slice(start, start + step)
        pair_rows = dispatch.pair_rows[part]
        outputs = loaded.compute(dispatch.rows, pair_rows, dispatch.pair_ids[part])
        added = sum_outputs(outputs, order.weights[part], pair_rows, order.exponents)
        sums = added if sums is None else np.add(sums, added, out=sums)
    return np.zeros((len(dispatch.rows), dispatch.d_model), np.int32) if sums is None else sums


def _result(dispatch: Dispatch, outputs: FloatRows) -> Result | SumResult:
    if dispatch.sums is not None:
        order = dispatch.sums
        sums = sum_outputs(outputs, order.weights, dispatch.pair_rows, order.exponents)
        return SumResult(dispatch.request, dispatch.layer, len(dispatch.pair_ids), sums)
    if dispatch.reply is ReplyType.F32:
        return Result(dispatch.request, dispatch.layer, outputs)
    rounded, is_exact_f16 = f16_reply(outputs)
    return Result(dispatch.request, dispatch.layer, rounded.astype(np.float16) if is_exact_f16 else rounded)
