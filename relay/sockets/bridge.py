"""Edges as the relay sees them: sessions and the bridges between them, which frames may pass, and bytes under way.

`hub` opens bridges between sessions and asks a bridge's ledger about every frame. Payloads are never read. Backbones
must stay within the edge's credit and workers may only send what they owe, so an edge never holds more than its credit
in memory, however slow or hostile a side is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from kvasir.edge.states import EdgeState, SessionState
from kvasir.errors import WireError
from kvasir.relay.records import record
from kvasir.wire.frames import Frame, Hello
from kvasir.wire.header import FLAG_SUMS, HEADER, HEADER_BYTES, MAGIC, VERSION, Buffer, Kind
from kvasir.wire.split import ORDER_BYTES, PAIR_BYTES, answer_bytes
from relay.sockets.outbox import Outbox

CLOSE_LINGER_S = 2.0  # how long a socket's last records may take to leave
MAX_NOTICES = 64  # pauses and goodbyes that a side may send beyond the answers that were given

_MAY_REACH_WORKER = frozenset({Kind.DISPATCH, Kind.GOAWAY, Kind.FAULT})
_NOTICES = frozenset({Kind.PAUSE, Kind.GOAWAY})


class EdgeBrokenError(WireError):
    """One side broke the rules of the edge, which must be closed."""


class Passage(Enum):
    """What the hub does with a frame that breaks no rule."""

    FORWARD = 0
    BUSY = 1  # over the edge's credit: the relay answers it
    LAST = 2  # forwarded, and the edge ends with it


class FrameFacts(NamedTuple):
    """The header fields that the relay reads. A tuple, because it is made for every frame."""

    kind: int
    request: int
    payload_bytes: int
    asked_bytes: int  # of a dispatch: its rows, which count as under way
    reply_bytes: int  # of a dispatch: the most bytes of its answer


@dataclass(slots=True)
class Traffic:
    """The frames and bytes of one edge, for its usage record."""

    frames_to_worker: int = 0
    bytes_to_worker: int = 0
    frames_to_backbone: int = 0
    bytes_to_backbone: int = 0
    n_refused_busy: int = 0


def read_facts(message: Buffer, start: int, stop: int) -> FrameFacts:
    """Return the facts of the frame at `message[start:stop]`. Raises EdgeBrokenError when it is not a frame."""
    if stop - start < HEADER_BYTES:
        raise EdgeBrokenError(f"frame of {stop - start} bytes, the header alone has {HEADER_BYTES}")
    magic, version, kind, _, flags, request, _, n_rows, n_pairs, d_model, payload_bytes, _ = HEADER.unpack_from(
        message, start
    )
    if magic != MAGIC:
        raise EdgeBrokenError(f"frame starts with {magic!r}, {MAGIC!r} is needed")
    if version != VERSION:
        raise EdgeBrokenError(f"frame of wire version {version} on an edge of version {VERSION}")
    if payload_bytes != stop - start - HEADER_BYTES:
        raise EdgeBrokenError(f"frame says {payload_bytes} payload bytes, it has {stop - start - HEADER_BYTES}")
    if kind != Kind.DISPATCH:
        return FrameFacts(kind, request, payload_bytes, 0, 0)
    is_sums = bool(flags & FLAG_SUMS)
    # as over TCP, only rows and answers count as under way
    uncounted = n_pairs * PAIR_BYTES + (ORDER_BYTES * (n_pairs + n_rows) if is_sums else 0)
    reply_bytes = answer_bytes(n_rows, n_pairs, d_model, is_sums=is_sums)
    return FrameFacts(kind, request, payload_bytes, max(payload_bytes - uncounted, 0), reply_bytes)


class EdgeLedger:
    """The state of edge `number` and the requests that its worker owes.

    `credit_bytes` bounds requests under way and their answers together, and half of it bounds the requests alone: they
    are what waits here for a slow worker. No honest dispatch meets that bound first: its answer is never smaller than
    its rows.
    """

    def __init__(self, number: int, credit_bytes: int) -> None:
        self.number = number
        self.state = EdgeState.HANDSHAKE
        self._credit_bytes = credit_bytes
        self._owed: dict[int, tuple[int, int]] = {}  # bytes of rows and of the largest answer, by request
        self._used_bytes = 0
        self._asked_bytes = 0  # the part of the requests
        self._notices_left = MAX_NOTICES
        self.traffic = Traffic()

    @property
    def n_owed(self) -> int:
        """Requests that the worker has not answered yet."""
        return len(self._owed)

    @property
    def used_bytes(self) -> int:
        """Bytes under way."""
        return self._used_bytes

    def from_backbone(self, facts: FrameFacts) -> Passage:
        """Check and count a frame for the worker. Raises EdgeBrokenError."""
        if facts.kind not in _MAY_REACH_WORKER:
            raise EdgeBrokenError(f"the backbone sent {_shown(facts.kind)}, which an edge does not carry to a worker")
        passage = Passage.FORWARD
        if facts.kind == Kind.DISPATCH:
            if self.state is EdgeState.HANDSHAKE:
                raise EdgeBrokenError("the backbone sent a dispatch before the worker's welcome")
            if not self._owe(facts):
                self.traffic.n_refused_busy += 1
                return Passage.BUSY
        elif facts.kind == Kind.FAULT:
            passage = Passage.LAST
        else:
            self._take_notice("backbone")
        self.traffic.frames_to_worker += 1
        self.traffic.bytes_to_worker += HEADER_BYTES + facts.payload_bytes
        return passage

    def from_worker(self, facts: FrameFacts) -> Passage:
        """Check and count a frame for the backbone. Raises EdgeBrokenError."""
        passage = Passage.FORWARD
        if facts.kind == Kind.RESULT or (facts.kind == Kind.FAULT and facts.request):
            self._settle(facts)
        elif facts.kind == Kind.FAULT:
            passage = Passage.LAST
        elif self.state is EdgeState.HANDSHAKE and facts.kind == Kind.WELCOME:
            self.enter(EdgeState.OPEN)
        elif self.state is EdgeState.HANDSHAKE and facts.kind == Kind.REFUSE:
            passage = Passage.LAST
        elif self.state is EdgeState.OPEN and facts.kind in _NOTICES:
            self._take_notice("worker")
        else:
            raise EdgeBrokenError(f"the worker sent {_shown(facts.kind)}, which is not its turn")
        self.traffic.frames_to_backbone += 1
        self.traffic.bytes_to_backbone += HEADER_BYTES + facts.payload_bytes
        return passage

    def enter(self, state: EdgeState) -> None:
        """Change the state of the bridge, and log it."""
        self.state = self.state.to(state, f"bridge {self.number}")

    def _take_notice(self, sender: str) -> None:
        self._notices_left -= 1
        if self._notices_left < 0:
            raise EdgeBrokenError(f"the {sender} sent one notice too many: {MAX_NOTICES} may come without answers")

    def _owe(self, facts: FrameFacts) -> bool:
        if facts.request == 0 or facts.request in self._owed:
            raise EdgeBrokenError(f"the backbone used request number {facts.request}, which is 0 or still unanswered")
        asked_bytes, reply_bytes = facts.asked_bytes, facts.reply_bytes
        used_bytes = self._used_bytes + asked_bytes + reply_bytes
        all_asked_bytes = self._asked_bytes + asked_bytes
        if self._owed and (used_bytes > self._credit_bytes or all_asked_bytes > self._credit_bytes // 2):
            return False
        self._owed[facts.request] = (asked_bytes, reply_bytes)
        self._used_bytes, self._asked_bytes = used_bytes, all_asked_bytes
        return True

    def _settle(self, facts: FrameFacts) -> None:
        owed = self._owed.pop(facts.request, None)
        if owed is None:
            raise EdgeBrokenError(f"the worker answered request {facts.request}, which it does not owe")
        asked_bytes, reply_bytes = owed
        self._used_bytes -= asked_bytes + reply_bytes
        self._asked_bytes -= asked_bytes
        if facts.kind == Kind.RESULT and facts.payload_bytes > reply_bytes:
            raise EdgeBrokenError(
                f"the answer to request {facts.request} has {facts.payload_bytes} bytes, the worker owes {reply_bytes}"
            )
        self._notices_left = min(self._notices_left + 1, MAX_NOTICES)


@dataclass(slots=True, eq=False)
class Session:
    """The socket of a node whose hello was accepted."""

    hello: Hello
    token_id: str
    name: str
    outbox: Outbox
    close_socket: Callable[[int, str], Awaitable[None]]
    state: SessionState = SessionState.CONNECTING
    bridges: dict[int, Bridge] = field(default_factory=dict)  # by the number of their edge
    close_reason: str = ""
    closing: asyncio.Task[None] | None = None  # sends what is queued, then closes the socket

    @property
    def is_open(self) -> bool:
        """Whether messages are taken from this socket."""
        return self.state is SessionState.JOINED or self.state is SessionState.GOING_AWAY

    def enter(self, state: SessionState) -> None:
        """Change the state, and log it."""
        self.state = self.state.to(state, f"session of {self.name}")

    def send(self, edge: int, frame: Frame) -> None:
        """Queue a frame of the relay itself."""
        self.outbox.put(record(edge, frame))

    def close(self, code: int, reason: str) -> None:
        """Send what is queued, then close the socket with this reason. Returns at once."""
        if self.is_open:
            self.enter(SessionState.PARTING)
            self.close_reason = reason
            self.closing = asyncio.get_running_loop().create_task(self._close(code, reason))

    async def _close(self, code: int, reason: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LINGER_S):
                await self.outbox.flush()
        await self.close_socket(code, reason)


@dataclass(slots=True, eq=False)
class Bridge:
    """One backbone and one worker, joined."""

    backbone: Session
    worker: Session
    ledger: EdgeLedger
    began: datetime
    began_s: float

    @property
    def number(self) -> int:
        """The number of its edge."""
        return self.ledger.number


def _shown(kind: int) -> str:
    return Kind(kind).name if kind in Kind._value2member_map_ else f"a frame of unknown kind {kind}"
