"""A backbone's edge to one worker over any link: dispatches out, results back, in any order.

`edge` adds TCP to it, `relay.sockets.bridge` the relay. Every call ends by its deadline; a closed edge fails what is in
flight at once. It does not decide where a row goes, and it does not compute anything itself.
"""

from __future__ import annotations

import asyncio

import numpy as np

from kvasir.edge.handshake import checked_welcome
from kvasir.edge.inflight import MAX_LATE, Inflight, InflightBudget, Pending
from kvasir.edge.link import EdgeLink
from kvasir.errors import EdgeError, EdgeTimeout, WireError, WorkerFault
from kvasir.experts import ExpertRange
from kvasir.wire.frames import (
    Dispatch,
    Fault,
    Frame,
    Goaway,
    Hello,
    Pause,
    Ping,
    Pong,
    Result,
    SumResult,
    Welcome,
)
from kvasir.wire.header import PROTOCOL_LIMITS
from kvasir.wire.split import Answer, DispatchPart, ExpertCall, split_dispatch


class Edge:
    """One edge to one worker; `address` names the worker in errors. Use it from the event loop that made it."""

    def __init__(self, hello: Hello, address: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._hello = hello
        self._address = address
        self._inflight = Inflight()
        self._budget = InflightBudget(PROTOCOL_LIMITS.max_inflight_bytes)
        self._welcomed: asyncio.Future[Welcome] = self._loop.create_future()
        self._paused_until = 0.0
        self._goaway = ""
        self._failure = ""
        self._gone = asyncio.Event()
        self.closed: asyncio.Future[str] = self._loop.create_future()

    @property
    def _link(self) -> EdgeLink:
        raise NotImplementedError

    @property
    def address(self) -> str:
        """The worker's name in errors, unique among the edges of this process."""
        return self._address

    @property
    def welcome(self) -> Welcome:
        """What the worker said of itself."""
        return self._welcomed.result()

    @property
    def coverage(self) -> tuple[ExpertRange, ...]:
        """The expert ranges that the worker holds."""
        return self.welcome.ranges

    @property
    def is_available(self) -> bool:
        """Whether new dispatches are welcome: open, not paused, not about to stop."""
        return not self._failure and not self._goaway and self._loop.time() >= self._paused_until

    @property
    def bytes_sent(self) -> int:
        """All bytes that this side wrote, headers included."""
        return self._link.bytes_sent

    @property
    def bytes_received(self) -> int:
        """All bytes that came from the worker, headers included."""
        return self._link.bytes_received

    @property
    def n_late(self) -> int:
        """Answers that came after their deadline and were dropped."""
        return self._inflight.n_late

    @property
    def n_inflight(self) -> int:
        """Frames that the worker has yet to answer."""
        return len(self._inflight)

    async def dispatch(self, call: ExpertCall, deadline_s: float) -> Answer:
        """Return the outputs f32 [n_pairs, d_model] of a call, or its sums i32 [n_rows, d_model].

        What is too large for one frame is split by rows. Waits while too many bytes are under way. The arrays must not
        change until the call ends. Raises EdgeTimeout after `deadline_s` seconds (a late answer is dropped),
        WorkerFault when the worker says why it did not compute, EdgeError when the edge is or gets closed.
        """
        parts = self._parts(call)
        whole = call.empty_answer(self.welcome.d_model) if len(parts) != 1 else None
        return await self._call(call.layer, parts, whole, deadline_s)

    def _parts(self, call: ExpertCall) -> list[DispatchPart]:
        welcome = self.welcome
        self._check_open()
        if call.row_format is not welcome.row_format:
            raise EdgeError(f"worker {self._address} takes {welcome.row_format.name} rows, not {call.row_format.name}")
        if not len(call.pair_ids):
            return []
        return split_dispatch(call.rows, call.pair_rows, call.pair_ids, welcome.d_model, welcome.limits, call.sums)

    async def _call(self, layer: int, parts: list[DispatchPart], whole: Answer | None, deadline_s: float) -> Answer:
        """Send parts and wait for all their answers; `whole` is where they are put together, unless there is one."""
        sent: list[Pending] = []
        try:
            async with asyncio.timeout(deadline_s):
                await self._send_all(layer, parts, whole, sent)
                for pending in sent:
                    await pending.answer
        except TimeoutError as error:
            # an answer may have come in the very moment of the deadline
            if len(sent) < len(parts) or not all(pending.is_answered for pending in sent):
                raise EdgeTimeout(f"worker {self._address}, layer {layer}: no result within {deadline_s} s") from error
        finally:
            self._abandon(sent)
        return sent[0].answer.result() if whole is None else whole

    async def close(self) -> None:
        """Close the edge and wait until it is closed; what is in flight fails."""
        self._fail(EdgeError("closed by this side"))
        await self._gone.wait()

    # What the link calls

    def frame_received(self, frame: Frame) -> None:
        """Handle one frame from the worker; one that breaks the rules closes the edge."""
        try:
            if self._welcomed.done():
                self._handle(frame)
            else:
                welcome = checked_welcome(frame, self._hello, self._address)
                most = min(self._hello.limits.max_inflight_bytes, welcome.limits.max_inflight_bytes)
                self._budget = InflightBudget(most)
                self._welcomed.set_result(welcome)
        except EdgeError as error:
            self._fail(error)

    def bytes_refused(self, error: WireError) -> None:
        """Close the edge over bytes that are no frame."""
        self._fail(EdgeError(f"worker {self._address} sent bytes that are no frame: {error}"))

    def bytes_went_out(self) -> None:
        """Nothing to do: the budget of bytes under way bounds the queue."""

    def link_closed(self, reason: str) -> None:
        """Fail what is in flight; nothing can come any more."""
        self._fail(EdgeError(f"worker {self._address}: {self._goaway or reason}"))
        self._gone.set()

    def _handle(self, frame: Frame) -> None:
        match frame:
            case Result() | SumResult():
                self._take_result(frame)
            case Fault(0, code, message):
                raise EdgeError(f"worker {self._address} ended the edge ({code.name}): {message}")
            case Fault(_, code, message):
                self._answered(frame).fail(WorkerFault(f"worker {self._address} ({code.name}): {message}"))
            case Pause(milliseconds):
                self._paused_until = self._loop.time() + milliseconds / 1000
            case Goaway(reason):
                self._goaway = reason or "the worker stops"
            case Ping(number):
                self._link.send(Pong(number), self.welcome.limits)
            case Pong():
                pass
            case _:
                raise EdgeError(f"worker {self._address} sent {type(frame).__name__}, which only a backbone sends")

    def _take_result(self, result: Result | SumResult) -> None:
        pending = self._answered(result)
        wrong = pending.mismatch(result)
        if wrong is not None:
            error = EdgeError(f"worker {self._address}: result {result.request} {wrong}")
            pending.fail(error)
            raise error
        outputs = result.sums if isinstance(result, SumResult) else result.outputs.astype(np.float32, copy=False)
        pending.succeed(outputs)

    def _answered(self, frame: Result | SumResult | Fault) -> Pending:
        try:
            pending = self._inflight.answered(frame)
        except EdgeError as error:
            raise EdgeError(f"worker {self._address}: {error}") from error
        self._budget.give(pending.cost)
        return pending

    async def _send_all(self, layer: int, parts: list[DispatchPart], whole: Answer | None, sent: list[Pending]) -> None:
        """Send the parts as the budget allows, those together that it allows at once; `sent` grows with them."""
        costs = [part.cost(self.welcome.d_model) for part in parts]
        is_granted = False
        for i, (part, cost) in enumerate(zip(parts, costs, strict=True)):
            if not is_granted:
                await self._budget.take(cost)
            is_granted = i + 1 < len(parts) and self._budget.try_take(costs[i + 1])
            try:
                pending = self._send(layer, part, cost, has_more=is_granted)
            except BaseException:
                self._budget.give(cost + (costs[i + 1] if is_granted else 0))
                raise
            in_rows = slice(part.first_row, part.first_row + len(part.rows))
            pending.into, pending.places = whole, part.pairs if part.sums is None else in_rows
            sent.append(pending)

    def _send(self, layer: int, part: DispatchPart, cost: int, *, has_more: bool) -> Pending:
        welcome = self.welcome
        self._check_open()
        dispatch = Dispatch(
            self._inflight.next_number(),
            layer,
            welcome.row_format,
            welcome.d_model,
            part.rows,
            part.pair_rows,
            part.pair_ids,
            has_more=has_more,
            sums=part.sums,
        )
        self._link.send(dispatch, welcome.limits)
        return self._inflight.add(dispatch, cost)

    def _check_open(self) -> None:
        if self._failure:
            raise EdgeError(self._failure)
        if not self.is_available:
            raise EdgeError(f"worker {self._address} takes no dispatches now: {self._goaway or 'it asked for a pause'}")

    def _abandon(self, sent: list[Pending]) -> None:
        """Stop waiting for answers; those that still come are dropped."""
        for pending in sent:
            pending.abandon()
        if not all(pending.is_answered for pending in sent) and self._inflight.n_abandoned > MAX_LATE:
            self._fail(EdgeError(f"worker {self._address} owes more than {MAX_LATE} answers that are late"))

    def _fail(self, error: EdgeError) -> None:
        """Close the edge for good: everybody who waits gets the error now."""
        if self._failure:
            return
        self._failure = str(error)
        self._link.close(self._failure)
        if not self._welcomed.done():
            self._welcomed.set_exception(error)
            self._welcomed.exception()  # connect may have given up before: then nobody else looks
        self._inflight.fail_all(self._failure)
        self._budget.fail_all(self._failure)
        self.closed.set_result(self._failure)
