"""A backbone's edge to one worker over any link: dispatches out, results back, in any order.

`tcp_edge` adds TCP to it, `kvasir.relay.edge` the relay. Every call ends by its deadline, and all calls in flight fail
as soon as the edge is closed. It does not decide where a row goes, and it computes nothing.
"""

from __future__ import annotations

import asyncio

import numpy as np

from kvasir.edge.inflight import MAX_LATE, Answer, Inflight, InflightBudget, Pending
from kvasir.edge.link import EdgeLink
from kvasir.edge.states import EdgeState
from kvasir.errors import EdgeError, EdgeTimeout, HandshakeRefused, WireError, WorkerFault
from kvasir.experts import ExpertRange, FloatRows
from kvasir.kernels.api import EncodedRows, Pairs, RowFormat
from kvasir.kernels.sums import RowSums
from kvasir.wire.frames import (
    Dispatch,
    Fault,
    Frame,
    Goaway,
    Hello,
    Pause,
    Ping,
    Pong,
    Refuse,
    ReplyType,
    Result,
    SumOrder,
    SumResult,
    Welcome,
)
from kvasir.wire.header import PROTOCOL_LIMITS
from kvasir.wire.split import DispatchPart, split_dispatch


class Edge:
    """One edge to one worker, which errors name by `address`. Use it on the event loop that made it."""

    def __init__(self, hello: Hello, address: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._hello = hello
        self._address = address
        self._inflight = Inflight()
        self._budget = InflightBudget(PROTOCOL_LIMITS.max_inflight_bytes)
        self._welcomed: asyncio.Future[Welcome] = self._loop.create_future()
        self._paused_until = 0.0
        self.state = EdgeState.HANDSHAKE
        self._reason = ""  # why the worker goes away, later why the edge was closed
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
        """The worker's answer to the hello."""
        return self._welcomed.result()

    @property
    def coverage(self) -> tuple[ExpertRange, ...]:
        """The expert ranges that the worker holds."""
        return self.welcome.ranges

    @property
    def is_available(self) -> bool:
        """Whether the edge takes dispatches now: it is open and the worker has not asked for a pause."""
        return self.state is EdgeState.OPEN and self._loop.time() >= self._paused_until

    @property
    def bytes_sent(self) -> int:
        """Bytes written by this side, headers included."""
        return self._link.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Bytes received from the worker, headers included."""
        return self._link.bytes_received

    @property
    def n_late(self) -> int:
        """Answers that arrived after their deadline and were dropped."""
        return self._inflight.n_late

    @property
    def n_inflight(self) -> int:
        """Dispatches that the worker has not answered yet."""
        return len(self._inflight)

    async def dispatch(
        self,
        layer: int,
        rows: EncodedRows,
        row_format: RowFormat,
        pair_rows: Pairs,
        pair_ids: Pairs,
        deadline_s: float,
        *,
        reply: ReplyType = ReplyType.F32,
    ) -> FloatRows:
        """Outputs f32 [n_pairs, d_model] of `pair_ids[i]` (the worker's local ids) for `rows[pair_rows[i]]`.

        What is too large for one frame is split by rows. Waits while too many bytes are under way. The arrays must not
        change until the call ends. Raises EdgeTimeout after `deadline_s` seconds (a late answer is dropped),
        WorkerFault when the worker says why it did not compute, EdgeError when the edge is or gets closed.
        """
        parts = self._parts(rows, row_format, pair_rows, pair_ids, None)
        whole = np.empty((len(pair_ids), self.welcome.d_model), np.float32) if len(parts) != 1 else None
        return np.asarray(await self._call(layer, parts, whole, reply, deadline_s), np.float32)

    async def dispatch_sums(
        self,
        layer: int,
        rows: EncodedRows,
        row_format: RowFormat,
        pair_rows: Pairs,
        pair_ids: Pairs,
        order: SumOrder,
        deadline_s: float,
    ) -> RowSums:
        """As `dispatch`, but yields the integer sums of each row's weighted outputs: i32 [n_rows, d_model]."""
        parts = self._parts(rows, row_format, pair_rows, pair_ids, order)
        whole = np.zeros((len(rows), self.welcome.d_model), np.int32) if len(parts) != 1 else None
        return np.asarray(await self._call(layer, parts, whole, ReplyType.F32, deadline_s), np.int32)

    def _parts(
        self, rows: EncodedRows, row_format: RowFormat, pair_rows: Pairs, pair_ids: Pairs, order: SumOrder | None
    ) -> list[DispatchPart]:
        welcome = self.welcome
        self._check_open()
        if row_format is not welcome.row_format:
            raise EdgeError(f"worker {self._address} takes {welcome.row_format.name} rows, not {row_format.name}")
        if not len(pair_ids):
            return []
        return split_dispatch(rows, pair_rows, pair_ids, welcome.d_model, welcome.limits, order)

    async def _call(
        self, layer: int, parts: list[DispatchPart], whole: Answer | None, reply: ReplyType, deadline_s: float
    ) -> Answer:
        """Send parts and wait for all answers, which are put together in `whole` unless there is only one part."""
        sent: list[Pending] = []
        try:
            async with asyncio.timeout(deadline_s):
                await self._send_all(layer, parts, whole, reply, sent)
                for pending in sent:
                    await pending.answer
        except TimeoutError as error:
            # the last answer may have arrived at the same moment as the deadline
            if len(sent) < len(parts) or not all(pending.is_answered for pending in sent):
                raise EdgeTimeout(f"worker {self._address}, layer {layer}: no result within {deadline_s} s") from error
        finally:
            self._abandon(sent)
        return sent[0].answer.result() if whole is None else whole

    async def close(self) -> None:
        """Close the edge and wait until it is closed; what is in flight fails."""
        self._fail(EdgeError("closed by this side"))
        await self._gone.wait()

    # Called by the link

    def frame_received(self, frame: Frame) -> None:
        """Handle one frame from the worker; close the edge over a frame that breaks the rules."""
        try:
            if self.state is EdgeState.HANDSHAKE:
                welcome = checked_welcome(frame, self._hello, self._address)
                most = min(self._hello.limits.max_inflight_bytes, welcome.limits.max_inflight_bytes)
                self._budget = InflightBudget(most)
                self._enter(EdgeState.OPEN)
                self._welcomed.set_result(welcome)
            else:
                self._handle(frame)
        except EdgeError as error:
            self._fail(error)

    def bytes_refused(self, error: WireError) -> None:
        """Close the edge over bytes that are not a frame."""
        self._fail(EdgeError(f"worker {self._address} sent bytes that are not a frame: {error}"))

    def bytes_went_out(self) -> None:
        """Do nothing: the budget of bytes under way bounds the queue."""

    def link_closed(self, reason: str) -> None:
        """Fail what is in flight: nothing more will arrive."""
        self._fail(EdgeError(f"worker {self._address}: {self._reason or reason}"))
        self._enter(EdgeState.CLOSED)
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
                if self.state is EdgeState.OPEN:
                    self._enter(EdgeState.GOING_AWAY)
                self._reason = reason or "the worker stops"
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

    async def _send_all(
        self, layer: int, parts: list[DispatchPart], whole: Answer | None, reply: ReplyType, sent: list[Pending]
    ) -> None:
        """Send the parts as the budget allows, and append each to `sent`. Those granted together are sent together."""
        costs = [part.cost(self.welcome.d_model) for part in parts]
        is_granted = False
        for i, (part, cost) in enumerate(zip(parts, costs, strict=True)):
            if not is_granted:
                await self._budget.take(cost)
            is_granted = i + 1 < len(parts) and self._budget.try_take(costs[i + 1])
            try:
                pending = self._send(layer, part, cost, reply, has_more=is_granted)
            except BaseException:
                self._budget.give(cost + (costs[i + 1] if is_granted else 0))
                raise
            in_rows = slice(part.first_row, part.first_row + len(part.rows))
            pending.into, pending.places = whole, part.pairs if part.sums is None else in_rows
            sent.append(pending)

    def _send(self, layer: int, part: DispatchPart, cost: int, reply: ReplyType, *, has_more: bool) -> Pending:
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
            reply,
            has_more,
            part.sums,
        )
        self._link.send(dispatch, welcome.limits)
        return self._inflight.add(dispatch, cost)

    def _check_open(self) -> None:
        if self.state in (EdgeState.CLOSING, EdgeState.CLOSED):
            raise EdgeError(self._reason)
        if not self.is_available:
            raise EdgeError(f"worker {self._address} takes no dispatches now: {self._reason or 'it asked for a pause'}")

    def _abandon(self, sent: list[Pending]) -> None:
        """Stop waiting for answers; those that still arrive are dropped."""
        for pending in sent:
            pending.abandon()
        if not all(pending.is_answered for pending in sent) and self._inflight.n_abandoned > MAX_LATE:
            self._fail(EdgeError(f"worker {self._address} owes more than {MAX_LATE} answers that are late"))

    def _fail(self, error: EdgeError) -> None:
        """Close the edge; every caller that waits gets the error now."""
        if self.state in (EdgeState.CLOSING, EdgeState.CLOSED):
            return
        was_welcome = self.state is not EdgeState.HANDSHAKE
        self._enter(EdgeState.CLOSING)
        self._reason = str(error)
        self._link.close(self._reason)
        if not was_welcome:
            self._welcomed.set_exception(error)
            self._welcomed.exception()  # retrieved, in case that `connect` has given up
        self._inflight.fail_all(self._reason)
        self._budget.fail_all(self._reason)
        self.closed.set_result(self._reason)

    def _enter(self, state: EdgeState) -> None:
        self.state = self.state.to(state, f"edge to worker {self._address}")


def checked_welcome(frame: Frame, hello: Hello, address: str) -> Welcome:
    """Return the worker's Welcome to `hello`, whose fingerprints both sides compare.

    Raises HandshakeRefused when the worker refused or has another model or kernel than the hello names, EdgeError when
    it ended the edge or sent another frame.
    """
    match frame:
        case Welcome():
            _check_same("model fingerprint", hello.model_fingerprint, frame.model_fingerprint, address)
            _check_same("kernel fingerprint", hello.kernel_fingerprint, frame.kernel_fingerprint, address)
            return frame
        case Refuse(code, message):
            raise HandshakeRefused(f"worker {address} refused ({code.name}): {message}")
        case Fault(_, code, message):
            raise EdgeError(f"worker {address} ended the edge ({code.name}): {message}")
        case _:
            raise EdgeError(f"worker {address} sent {type(frame).__name__} where Welcome is due")


def _check_same(name: str, ours: str, theirs: str, address: str) -> None:
    if ours != theirs:
        raise HandshakeRefused(f"worker {address}: {name} is {theirs}, this backbone has {ours}")
