"""One backbone's connection as the worker sees it: handshake, checks, answers.

`serve` makes one for each socket that it accepts. Whatever the other side sends, it is answered or the connection is
closed with a reason; nothing that was not checked reaches the kernel, and nothing here disturbs another connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kvasir import __version__
from kvasir.edge.link import TcpLink
from kvasir.edge.states import EdgeState
from kvasir.errors import WireError, WireVersionError
from kvasir.relay.link import RelayLink
from kvasir.wire.frames import (
    Dispatch,
    Fault,
    FaultCode,
    Frame,
    Goaway,
    Hello,
    Ping,
    Pong,
    Refuse,
    RefuseCode,
    Welcome,
    clipped,
)
from kvasir.wire.header import PROTOCOL_LIMITS, Limits
from kvasir.worker.serving.admission import answer_bytes_of, dispatch_fault, hello_refusal
from kvasir.worker.serving.compute import Answer, ComputeQueue, Job
from kvasir.worker.serving.holdings import Holdings
from kvasir.worker.serving.watch import Moments

Link = TcpLink | RelayLink

HELLO_BYTES = 4096  # the largest payload from a stranger who has not said who it is

log = logging.getLogger(__name__)


class Registry(Protocol):
    """Who knows all connections."""

    def refusal(self) -> Refuse | None:
        """Why no further backbone is welcome, or None."""
        ...

    def connection_changed(self, connection: Connection) -> None:
        """Something was answered, sent or closed."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """What every connection of a worker shares."""

    holdings: Holdings
    queue: ComputeQueue
    limits: Limits


class Connection:
    """One socket, or one edge through a relay.

    The owner of a socket looks at `moments` from time to time and calls `end` when it takes too long.
    """

    def __init__(self, service: Service, registry: Registry, number: int, link: Link | None = None) -> None:
        self._service = service
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.time()
        self._limits = PROTOCOL_LIMITS  # of the backbone, which its hello states
        self._owed_bytes = 0
        self._backlog: deque[Dispatch] = deque()  # over the budget: not computed before answers went out
        self._together: list[Job] = []  # parts of one dispatch, of which more are announced
        self.number = number
        self.state = EdgeState.HANDSHAKE
        self.n_answered = 0
        self.link: Link = link or TcpLink(self, service.limits, HELLO_BYTES)

    @property
    def is_welcome(self) -> bool:
        """Whether the handshake is done and the edge has not been ended."""
        return self.state in (EdgeState.OPEN, EdgeState.GOING_AWAY)

    @property
    def owes(self) -> bool:
        """Whether answers are outstanding or on their way out."""
        return not self.link.is_closing and bool(self._owed_bytes or self._backlog or self.link.queued_bytes)

    @property
    def moments(self) -> Moments:
        """When what happened, for the watch over deadlines."""
        link = self.link
        return Moments(
            opened=self._opened,
            is_welcome=self.is_welcome,
            last_received=link.last_received,
            frame_began=link.frame_began,
            last_sent=link.last_sent,
            has_unsent=link.queued_bytes > 0,
            owes=self._owed_bytes > 0 and not self._together,
        )

    def end(self, reason: str) -> None:
        """Say why, as far as the other side still listens, and close."""
        if self.link.is_closing:
            return
        log.info("connection %d ends: %s", self.number, reason)
        self._forget_work()
        if self.is_welcome:
            self._send(Fault(0, FaultCode.PROTOCOL, clipped(reason)))
        else:
            self._send(Refuse(RefuseCode.DEADLINE, clipped(reason)))
        self._enter(EdgeState.CLOSING)
        self.link.close(reason)

    def say_goodbye(self, reason: str) -> None:
        """Tell the backbone that this worker will stop."""
        if self.state is EdgeState.OPEN and not self.link.is_closing:
            self._send(Goaway(clipped(reason)))
            self._enter(EdgeState.GOING_AWAY)

    # What the link calls

    def frame_received(self, frame: Frame) -> None:
        """Handle one frame."""
        if self.state is EdgeState.HANDSHAKE:
            self._shake_hands(frame)
            return
        match frame:
            case Dispatch():
                self._accept(frame)
            case Ping(number):
                self._send(Pong(number))
            case Pong() | Goaway():
                pass
            case _:
                self.end(f"{type(frame).__name__} is not for a worker after the handshake")

    def bytes_refused(self, error: WireError) -> None:
        """Answer bytes that are no frame with the reason, and close."""
        if self.is_welcome:
            self.end(str(error))
            return
        code = RefuseCode.VERSION if isinstance(error, WireVersionError) else RefuseCode.MALFORMED
        self._refuse(Refuse(code, clipped(str(error))))

    def bytes_went_out(self) -> None:
        """Go on with what had to wait until answers were sent."""
        if not self.link.is_closing:
            self._submit_what_fits()
        self._registry.connection_changed(self)

    def link_closed(self, reason: str) -> None:
        """Forget everything that this backbone had asked for."""
        log.info("connection %d closed after %d answers: %s", self.number, self.n_answered, reason)
        self._enter(EdgeState.CLOSED)
        self._forget_work()
        self._registry.connection_changed(self)

    def _shake_hands(self, frame: Frame) -> None:
        if not isinstance(frame, Hello):
            self._refuse(Refuse(RefuseCode.MALFORMED, f"the first frame is {type(frame).__name__}, Hello is needed"))
            return
        holdings = self._service.holdings
        refusal = hello_refusal(frame, holdings) or self._registry.refusal()
        if refusal is not None:
            self._refuse(refusal)
            return
        self._limits = frame.limits
        self._enter(EdgeState.OPEN)
        self.link.accept(self._service.limits)
        log.info("connection %d: welcome, %s", self.number, frame.name or "nameless backbone")
        self._send(
            Welcome(
                holdings.model_fingerprint,
                holdings.kernel.fingerprint,
                holdings.kernel.name,
                holdings.kernel.row_format,
                holdings.d_model,
                holdings.ranges,
                self._service.limits,
                f"kvasir-worker {__version__}",
            )
        )

    def _refuse(self, refusal: Refuse) -> None:
        if self.link.is_closing:
            return
        log.info("connection %d refused (%s): %s", self.number, refusal.code.name, refusal.message)
        self._send(refusal)
        self._enter(EdgeState.CLOSING)
        self.link.close(f"refused: {refusal.message}")

    def _accept(self, dispatch: Dispatch) -> None:
        fault = dispatch_fault(dispatch, self._service.holdings, self._limits)
        if fault is not None:
            self._send(fault)
            return
        self._backlog.append(dispatch)
        self._submit_what_fits()

    def _submit_what_fits(self) -> None:
        """Take over what the budget allows; while something is left, nothing more is read from this backbone."""
        most = self._service.limits.max_inflight_bytes
        while self._backlog:
            dispatch = self._backlog[0]
            cost = dispatch.rows.nbytes + answer_bytes_of(dispatch)
            under_way = self._owed_bytes + self.link.queued_bytes
            if under_way and under_way + cost > most:
                self._submit_together()
                self.link.pause_reading()
                return
            self._backlog.popleft()
            self._owed_bytes += cost
            self._together.append(Job(self, dispatch, partial(self._answer, cost)))
            if not dispatch.has_more:
                self._submit_together()
        self.link.resume_reading()

    def _submit_together(self) -> None:
        """Queue the jobs that were kept until their last part came."""
        for job in self._together:
            self._service.queue.submit(job)
        self._together.clear()

    def _answer(self, cost: int, frame: Answer) -> None:
        self._owed_bytes -= cost
        self.n_answered += 1
        self._send(frame)
        self.bytes_went_out()

    def _forget_work(self) -> None:
        self._backlog.clear()
        self._together.clear()
        self._service.queue.forget(self)

    def _send(self, frame: Frame) -> None:
        if not self.link.is_closing:
            self.link.send(frame, self._limits)

    def _enter(self, state: EdgeState) -> None:
        self.state = self.state.to(state, f"connection {self.number}")
