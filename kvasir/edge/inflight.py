"""What an edge has sent and not yet had answered: request numbers, and how many bytes may be under way.

`edge` keeps one of each. No I/O, no time: deadlines cancel the futures that these hand out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvasir.errors import EdgeError
from kvasir.wire.frames import Dispatch, Fault, Result, SumResult
from kvasir.wire.split import Answer

LAST_NUMBER = 2**32 - 1

MAX_LATE = 1024  # answers that nobody waits for any more, before the edge is given up


class InflightBudget:
    """Bytes that may be under way at once. Who comes first is served first; one request always fits."""

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
                self.give(cost)  # granted and given up in the same moment
            elif (cost, turn) in self._waiting:
                self._waiting.remove((cost, turn))
                self._serve()
            raise

    def try_take(self, cost: int) -> bool:
        """Count `cost` more bytes if they may be under way now and nobody waits."""
        if self._waiting or not self._has_room(cost):
            return False
        self.used += cost
        return True

    def give(self, cost: int) -> None:
        """`cost` bytes are no longer under way."""
        self.used -= cost
        self._serve()

    def fail_all(self, reason: str) -> None:
        """Fail everyone who waits for a turn, now."""
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
    """A dispatch that was sent: what its answer must look like, and who waits for it."""

    layer: int
    n_pairs: int
    d_model: int
    cost: int
    answer: asyncio.Future[Answer]
    n_sum_rows: int | None = None  # of an answer in sums
    into: Answer | None = None  # where the whole dispatch's answer is put together; None: this is all of it
    places: npt.NDArray[np.intp] | slice | None = None  # at which of its rows

    @property
    def is_answered(self) -> bool:
        """Whether the outputs are there."""
        return self.answer.done() and not self.answer.cancelled() and self.answer.exception() is None

    def fail(self, error: EdgeError) -> None:
        """Tell who waits, if anyone still does."""
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # its dispatch may end over another part: then nobody else looks

    def abandon(self) -> None:
        """Nobody waits any more; an answer that still comes is dropped."""
        self.answer.cancel()

    def succeed(self, outputs: Answer) -> None:
        """Hand the outputs over, if anyone still waits. Copied while they are in cache."""
        if self.answer.done():
            return
        if self.into is not None and self.places is not None:
            self.into[self.places] = outputs
            outputs = self.into
        self.answer.set_result(outputs)

    def mismatch(self, result: Result | SumResult) -> str | None:
        """What is wrong with this answer, or None."""
        if isinstance(result, SumResult) or self.n_sum_rows is not None:
            return self._sums_mismatch(result)
        asked = (self.layer, self.n_pairs, self.d_model)
        given = (result.layer, *result.outputs.shape)
        if given != asked:
            return f"has (layer, pairs, d_model) {given}, asked was {asked}"
        if result.outputs.dtype == np.float16:
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
    """Requests by number. Numbers go round after 2^32 - 1; a number in flight is not given twice."""

    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._last = 0
        self.n_late = 0

    def __len__(self) -> int:
        return len(self._pending)

    def next_number(self) -> int:
        """A request number that is free."""
        while True:
            self._last = self._last % LAST_NUMBER + 1
            if self._last not in self._pending:
                return self._last

    def add(self, dispatch: Dispatch, cost: int) -> Pending:
        """Remember a dispatch that was sent."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        pending = Pending(dispatch.layer, len(dispatch.pair_ids), dispatch.d_model, cost, answer)
        if dispatch.sums is not None:
            pending.n_sum_rows = len(dispatch.rows)
        self._pending[dispatch.request] = pending
        return pending

    def answered(self, frame: Result | SumResult | Fault) -> Pending:
        """The request that this frame answers; it is no longer in flight. Raises EdgeError when there is none."""
        pending = self._pending.pop(frame.request, None)
        if pending is None:
            raise EdgeError(f"answer to request {frame.request}, which is not in flight")
        if pending.answer.done():
            self.n_late += 1
        return pending

    @property
    def n_abandoned(self) -> int:
        """Requests in flight for which nobody waits any more."""
        return sum(pending.answer.done() for pending in self._pending.values())

    def fail_all(self, reason: str) -> None:
        """Fail everything that is in flight, now."""
        for pending in self._pending.values():
            pending.fail(EdgeError(reason))
        self._pending.clear()
