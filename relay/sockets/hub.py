"""All sessions of one relay process, the bridges between them, and the way of every record.

`application` joins sessions and hands over their messages. The hub pairs each worker with every backbone that has the
same model and kernel, keeps both to the edge's rules, and tells each side at once when an edge has ended. It does no
I/O; tokens were checked before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from kvasir.edge.states import EdgeState, SessionState
from kvasir.errors import WireError
from kvasir.relay.records import RECORD_BYTES, RELAY_EDGE, record_spans
from kvasir.wire.codec import decode
from kvasir.wire.frames import Fault, FaultCode, Goaway, Hello, Ping, Pong, Refuse, RefuseCode, Role, clipped
from kvasir.wire.header import MAX_PAYLOAD_BYTES, Buffer, Kind
from relay.sockets.bridge import Bridge, EdgeBrokenError, EdgeLedger, Passage, Session, read_facts
from relay.sockets.usage import Usage

CREDIT_BYTES = 2 * MAX_PAYLOAD_BYTES  # the largest request and the largest answer fit
LAST_EDGE = 2**32 - 1
POLICY_VIOLATION, SERVICE_RESTART = 1008, 1012  # WebSocket close codes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HubLimits:
    """The limits of one relay process."""

    credit_bytes: int = CREDIT_BYTES
    max_sessions: int = 4096
    write_deadline_s: float = 60.0  # for one message to be sent


class Hub:
    """Sessions and bridges. Everything is called from one event loop."""

    def __init__(
        self, relay_id: str, on_usage: Callable[[Usage], None], clock: Callable[[], float], limits: HubLimits
    ) -> None:
        self.relay_id = relay_id
        self.limits = limits
        self._on_usage = on_usage
        self._clock = clock
        self._sessions: set[Session] = set()
        self._last_edge = 0
        self._bridges: dict[int, Bridge] = {}
        self._stop_reason = ""  # why nobody is welcome any more

    @property
    def sessions(self) -> Iterable[Session]:
        """All sessions that have joined."""
        return tuple(self._sessions)

    @property
    def n_owed(self) -> int:
        """Requests that have not been answered, over all edges."""
        return sum(bridge.ledger.n_owed for bridge in self._bridges.values())

    def refusal(self, session: Session) -> Refuse | None:
        """Return why this session cannot join, or None."""
        if self._stop_reason:
            return Refuse(RefuseCode.STOPPING, clipped(f"this relay is about to stop: {self._stop_reason}"))
        if len(self._sessions) >= self.limits.max_sessions:
            return Refuse(RefuseCode.FULL, f"{len(self._sessions)} nodes are connected, that is the most")
        if session.hello.role is Role.WORKER:
            return worker_refusal(session.hello, [s.hello for s in self._of(Role.BACKBONE)])
        return None

    def join(self, session: Session) -> None:
        """Add a session, bridge it with all that agree with it, and dismiss the workers that agree with no backbone."""
        is_worker = session.hello.role is Role.WORKER
        others = self._of(Role.BACKBONE if is_worker else Role.WORKER)
        session.enter(SessionState.JOINED)
        self._sessions.add(session)
        for other in others:
            backbone, worker = (other, session) if is_worker else (session, other)
            if disagreement(backbone.hello, worker.hello) is None:
                self._open(backbone, worker)
        if is_worker:
            return
        for worker in self._of(Role.WORKER):
            refusal = worker_refusal(worker.hello, [s.hello for s in self._of(Role.BACKBONE)])
            if refusal is not None:
                self.dismiss(worker, refusal)

    def leave(self, session: Session, reason: str) -> None:
        """Remove a session whose socket is gone; its edges end now."""
        session.enter(SessionState.CLOSED)
        self._sessions.discard(session)
        for bridge in tuple(session.bridges.values()):
            self.end_bridge(bridge, f"{session.hello.role.name.lower()} gone: {reason}", FaultCode.GONE)

    def dismiss(self, session: Session, refusal: Refuse) -> None:
        """Close a session's socket for this reason."""
        for bridge in tuple(session.bridges.values()):
            self.end_bridge(bridge, refusal.message, FaultCode.GONE)
        session.send(RELAY_EDGE, refusal)
        session.close(POLICY_VIOLATION, refusal.message)

    async def route(self, session: Session, message: Buffer) -> None:
        """Forward the records of a message. Waits while a backbone that receives some of them reads too slowly.

        Raises WireError when the message is not records; the socket must then be closed.
        """
        from_backbone = session.hello.role is Role.BACKBONE
        waiting: set[Session] = set()
        for number, start, stop in record_spans(message):
            if number == RELAY_EDGE:
                self._from_node(session, memoryview(message)[start:stop])
                waiting.add(session)
                continue
            bridge = session.bridges.get(number)
            if bridge is None:
                continue  # it ended while this record was under way, and the sender has been sent the reason
            try:
                if from_backbone:
                    self._to_worker(bridge, message, start, stop)
                else:
                    self._to_backbone(bridge, message, start, stop)
            except EdgeBrokenError as error:
                self._break(bridge, session, str(error))
            if bridge.backbone.outbox.is_full:
                waiting.add(bridge.backbone)
        for other in waiting:
            await other.outbox.room()

    def end_bridge(self, bridge: Bridge, mood: str, code: FaultCode, except_for: Session | None = None) -> None:
        """End an edge, send both sides but `except_for` the reason, and report its usage."""
        if bridge.ledger.state is EdgeState.CLOSED:
            return
        bridge.ledger.enter(EdgeState.CLOSED)
        del self._bridges[bridge.number]
        for side in (bridge.backbone, bridge.worker):
            side.bridges.pop(bridge.number, None)
            if side is not except_for and side.state is not SessionState.CLOSED:
                side.send(bridge.number, Fault(0, code, clipped(mood)))
        log.info("edge %d ended: %s", bridge.number, mood)
        tokens = bridge.backbone.token_id, bridge.worker.token_id
        seconds = self._clock() - bridge.began_s
        traffic = bridge.ledger.traffic
        self._on_usage(Usage(self.relay_id, bridge.number, *tokens, bridge.began, seconds, traffic, clipped(mood)))

    def announce_stop(self, reason: str) -> None:
        """Announce to all sessions that this relay will stop, and refuse new ones from now on."""
        self._stop_reason = reason
        for session in self._sessions:
            if session.state is SessionState.JOINED:
                session.enter(SessionState.GOING_AWAY)
            session.send(RELAY_EDGE, Goaway(clipped(reason)))

    def close_all(self, reason: str) -> None:
        """Close every socket."""
        for session in self.sessions:
            session.close(SERVICE_RESTART, reason)

    def close_stalled(self) -> None:
        """Close sockets whose other end has not taken a message within the write deadline."""
        now, deadline = self._clock(), self.limits.write_deadline_s
        for session in self.sessions:
            since = session.outbox.sending_since
            if since is not None and now - since > deadline:
                session.close(POLICY_VIOLATION, f"a message was not read within {deadline:g} s")

    def _of(self, role: Role) -> list[Session]:
        return [session for session in self._sessions if session.hello.role is role and session.is_open]

    def _open(self, backbone: Session, worker: Session) -> None:
        number = self._free_number()
        ledger = EdgeLedger(number, self.limits.credit_bytes)
        bridge = Bridge(backbone, worker, ledger, datetime.now(UTC), self._clock())
        self._bridges[number] = backbone.bridges[number] = worker.bridges[number] = bridge
        # the same hello as over TCP, without the token and with the edge's credit
        limits = backbone.hello.limits
        limits = replace(limits, max_inflight_bytes=min(limits.max_inflight_bytes, self.limits.credit_bytes))
        worker.send(bridge.number, replace(backbone.hello, token="", limits=limits))
        log.info("edge %d: %s with %s", bridge.number, backbone.name, worker.name)

    def _free_number(self) -> int:
        while True:
            self._last_edge = self._last_edge % LAST_EDGE + 1
            if self._last_edge not in self._bridges:
                return self._last_edge

    def _to_worker(self, bridge: Bridge, message: Buffer, start: int, stop: int) -> None:
        facts = read_facts(message, start, stop)
        passage = bridge.ledger.from_backbone(facts)
        if passage is Passage.BUSY:
            ledger, limit = bridge.ledger, self.limits.credit_bytes
            reason = f"{ledger.used_bytes} bytes are under way on this edge, {limit} may be"
            bridge.backbone.send(bridge.number, Fault(facts.request, FaultCode.BUSY, reason))
            return
        bridge.worker.outbox.put(_piece(message, start, stop))
        if passage is Passage.LAST:
            self.end_bridge(bridge, "ended by the backbone", FaultCode.GONE, except_for=bridge.worker)

    def _to_backbone(self, bridge: Bridge, message: Buffer, start: int, stop: int) -> None:
        facts = read_facts(message, start, stop)
        passage = bridge.ledger.from_worker(facts)
        if facts.kind == Kind.WELCOME:  # name the worker to the backbone; its own HELLO would break the edge
            bridge.backbone.send(bridge.number, replace(bridge.worker.hello, name=bridge.worker.token_id, token=""))
        bridge.backbone.outbox.put(_piece(message, start, stop))
        if passage is Passage.LAST:
            self.end_bridge(bridge, "ended by the worker", FaultCode.GONE, except_for=bridge.backbone)

    def _break(self, bridge: Bridge, breaker: Session, reason: str) -> None:
        self.end_bridge(bridge, reason, FaultCode.PROTOCOL)
        if breaker is bridge.worker:  # it can serve nobody; a backbone keeps its other workers
            breaker.close(POLICY_VIOLATION, reason)

    def _from_node(self, session: Session, data: Buffer) -> None:
        frame = decode(data)
        match frame:
            case Ping(number):
                session.send(RELAY_EDGE, Pong(number))
            case Pong():
                pass
            case _:
                raise WireError(f"{type(frame).__name__} is not for the relay itself")


def _piece(message: Buffer, start: int, stop: int) -> Buffer:
    """Return one record with its head, copied out of a bundle: a slow reader must not keep the bundle in memory."""
    start -= RECORD_BYTES
    return message if stop - start == len(message) else bytes(message[start:stop])


def disagreement(backbone: Hello, worker: Hello) -> Refuse | None:
    """Return why these two cannot work together, naming what each has, or None when they can."""
    if backbone.model_fingerprint != worker.model_fingerprint:
        return Refuse(
            RefuseCode.MODEL,
            f"model fingerprint: the backbone has {backbone.model_fingerprint}, the worker {worker.model_fingerprint}",
        )
    if backbone.kernel_fingerprint != worker.kernel_fingerprint:
        return Refuse(
            RefuseCode.KERNEL,
            f"kernel fingerprint: the backbone has {backbone.kernel} {backbone.kernel_fingerprint}, "
            f"the worker {worker.kernel} {worker.kernel_fingerprint}",
        )
    return None


def worker_refusal(worker: Hello, backbones: Collection[Hello]) -> Refuse | None:
    """Return why this worker agrees with no backbone; None when it agrees with one, or when there is none yet.

    The reason names the backbone that is nearest to it: one with the same model before any other.
    """
    reasons = [disagreement(backbone, worker) for backbone in backbones]
    if not reasons or None in reasons:
        return None
    by_nearness = {RefuseCode.KERNEL: 0, RefuseCode.MODEL: 1}
    return min((reason for reason in reasons if reason is not None), key=lambda reason: by_nearness[reason.code])
