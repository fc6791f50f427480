"""The dispatches of an edge that are not answered yet: their request numbers, and a budget of bytes under way.

`calls` keeps one of each. It does no I/O and knows no time: deadlines cancel the futures that it hands out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvasir.errors import EdgeError
from kvasir.experts import FloatRows
from kvasir.kernels.sums import RowSums
from kvasir.wire.frames import Dispatch, Fault, ReplyType, Result, SumResult

LAST_NUMBER = 2**32 - 1
Answer = FloatRows | RowSums  # outputs [n_pairs, d_model], or sums [n_rows, d_model]

MAX_LATE = 1024  # unanswered requests past their deadline, before the edge is given up


class InflightBudget:
    """Bytes that may be under way at once, granted in the order of asking. A single request always fits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used = 0

    async def take(self, cost: int) -> None:
        """Wait until `cost` more bytes may be under way, and count them."""
        if self.try_take(cost):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((cost, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give(cost)  # granted and cancelled at the same moment
            elif (cost, turn) in self._waiting:
                self._waiting.remove((cost, turn))
                self._serve()
            raise

    def try_take(self, cost: int) -> bool:
        """Count `cost` more bytes if they may be under way now and nothing waits. Return whether they were counted."""
        if self._waiting or not self._has_room(cost):
            return False
        self.used += cost
        return True

    def give(self, cost: int) -> None:
        """Give back `cost` bytes that are no longer under way."""
        self.used -= cost
        self._serve()

    def fail_all(self, reason: str) -> None:
        """Fail all that wait, now."""
        while self._waiting:
            _, turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(EdgeError(reason))

    def _has_room(self, cost: int) -> bool:
        return self.used == 0 or self.used + cost <= self._limit

    def _serve(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            cost, turn = self._waiting.popleft()
            if not turn.done():
                self.used += cost
                turn.set_result(None)


@dataclass(slots=True, eq=False)
class Pending:
    """A dispatch that was sent: the shape that its answer must have, and the future that waits for it."""

    layer: int
    n_pairs: int
    d_model: int
    reply: ReplyType
    cost: int
    answer: asyncio.Future[Answer]
    n_sum_rows: int | None = None  # of an answer in sums
    into: Answer | None = None  # the array that holds the whole dispatch's answer; None: this is all of it
    places: npt.NDArray[np.intp] | slice | None = None  # the rows of `into` for this part

    @property
    def is_answered(self) -> bool:
        """Whether the outputs have arrived."""
        return self.answer.done() and not self.answer.cancelled() and self.answer.exception() is None

    def fail(self, error: EdgeError) -> None:
        """Raise `error` in the caller, if it still waits."""
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # retrieved, in case that another part has failed its dispatch

    def abandon(self) -> None:
        """Stop waiting; an answer that still arrives is dropped."""
        self.answer.cancel()

    def succeed(self, outputs: Answer) -> None:
        """Hand the outputs to the caller, if it still waits. They are copied now, while they are in cache."""
        if self.answer.done():
            return
        if self.into is not None and self.places is not None:
            self.into[self.places] = outputs
            outputs = self.into
        self.answer.set_result(outputs)

    def mismatch(self, result: Result | SumResult) -> str | None:
        """Return what is wrong with this answer, or None."""
        if isinstance(result, SumResult) or self.n_sum_rows is not None:
            return self._sums_mismatch(result)
        asked = (self.layer, self.n_pairs, self.d_model)
        given = (result.layer, *result.outputs.shape)
        if given != asked:
            return f"has (layer, pairs, d_model) {given}, asked was {asked}"
        if result.outputs.dtype == np.float16 and self.reply is not ReplyType.F16:
            return "is f16, asked was f32"
        return None

    def _sums_mismatch(self, result: Result | SumResult) -> str | None:
        if self.n_sum_rows is None:
            return "is sums, asked were outputs"
        if not isinstance(result, SumResult):
            return "is outputs, asked were sums"
        asked = (self.layer, self.n_pairs, self.n_sum_rows, self.d_model)
        given = (result.layer, result.n_pairs, *result.sums.shape)
        return None if given == asked else f"has (layer, pairs, rows, d_model) {given}, asked was {asked}"


class Inflight:
    """Requests by number. After 2^32 - 1 numbers start again at 1; a number in flight is not used twice."""

    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._last = 0
        self.n_late = 0

    def __len__(self) -> int:
        return len(self._pending)

    def next_number(self) -> int:
        """Return a free request number."""
        while True:
            self._last = self._last % LAST_NUMBER + 1
            if self._last not in self._pending:
                return self._last

    def add(self, dispatch: Dispatch, cost: int) -> Pending:
        """Remember a dispatch that was sent."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        pending = Pending(dispatch.layer, len(dispatch.pair_ids), dispatch.d_model, dispatch.reply, cost, answer)
        if dispatch.sums is not None:
            pending.n_sum_rows = len(dispatch.rows)
        self._pending[dispatch.request] = pending
        return pending

    def answered(self, frame: Result | SumResult | Fault) -> Pending:
        """Remove and return the request that this frame answers. Raises EdgeError when there is none."""
        pending = self._pending.pop(frame.request, None)
        if pending is None:
            raise EdgeError(f"answer to request {frame.request}, which is not in flight")
        if pending.answer.done():
            self.n_late += 1
        return pending

    @property
    def n_abandoned(self) -> int:
        """Requests in flight whose callers have stopped waiting."""
        return sum(pending.answer.done() for pending in self._pending.values())

    def fail_all(self, reason: str) -> None:
        """Fail all requests in flight, now."""
        for pending in self._pending.values():
            pending.fail(EdgeError(reason))
        self._pending.clear()
