"""All sockets of one relay process, the edges between them, and the way of every record.

`application` joins stations and hands over their messages. The hub pairs each worker with every backbone that agrees
with it, keeps both sides to the edge's rules, and tells the other side at once when an edge has ended. It does no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from kvasir.errors import WireError
from kvasir.relay.records import RECORD_BYTES, RELAY_EDGE, record_spans
from kvasir.wire.codec import decode
from kvasir.wire.frames import Fault, FaultCode, Goaway, Ping, Pong, Refuse, RefuseCode, Role, clipped
from kvasir.wire.header import MAX_PAYLOAD_BYTES, Buffer, Kind
from relay.sockets.bridge import EdgeBrokenError, EdgeLedger, Passage, read_facts
from relay.sockets.pairing import disagreement, sides, worker_refusal
from relay.sockets.station import Edge, Station
from relay.sockets.usage import Usage

CREDIT_BYTES = 2 * MAX_PAYLOAD_BYTES  # the largest request and the largest answer fit
LAST_EDGE = 2**32 - 1
POLICY_VIOLATION, SERVICE_RESTART = 1008, 1012  # WebSocket close codes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HubLimits:
    """What one relay process takes on."""

    credit_bytes: int = CREDIT_BYTES
    max_stations: int = 4096
    write_deadline_s: float = 60.0  # for one message to leave


class Hub:
    """Stations and edges. Everything is called from one event loop."""

    def __init__(
        self, relay_id: str, on_usage: Callable[[Usage], None], clock: Callable[[], float], limits: HubLimits
    ) -> None:
        self.relay_id = relay_id
        self.limits = limits
        self._on_usage = on_usage
        self._clock = clock
        self._stations: set[Station] = set()
        self._last_edge = 0
        self._edges: dict[int, Edge] = {}
        self._goaway = ""

    @property
    def stations(self) -> Iterable[Station]:
        """Everyone who has joined."""
        return tuple(self._stations)

    @property
    def n_owed(self) -> int:
        """Requests that have not been answered, over all edges."""
        return sum(edge.ledger.n_owed for edge in self._edges.values())

    def refusal(self, station: Station) -> Refuse | None:
        """Why this station cannot join, or None."""
        if self._goaway:
            return Refuse(RefuseCode.STOPPING, clipped(f"this relay is about to stop: {self._goaway}"))
        if len(self._stations) >= self.limits.max_stations:
            return Refuse(RefuseCode.FULL, f"{len(self._stations)} nodes are connected, that is the most")
        if station.hello.role is Role.WORKER:
            return worker_refusal(station.hello, [s.hello for s in self._of(Role.BACKBONE)])
        return None

    def join(self, station: Station) -> None:
        """Open an edge to everyone who agrees with this station; workers that agree with nobody must leave."""
        others = [other for other in self._stations if not other.is_closing]
        self._stations.add(station)
        for other in others:
            pair = sides(station.hello, other.hello)
            if pair is None:
                continue
            backbone, worker = (station, other) if pair[0] is station.hello else (other, station)
            if disagreement(backbone.hello, worker.hello) is None:
                self._open(backbone, worker)
        if station.hello.role is Role.WORKER:
            return
        for worker in self._of(Role.WORKER):
            refusal = worker_refusal(worker.hello, [s.hello for s in self._of(Role.BACKBONE)])
            if refusal is not None:
                self.dismiss(worker, refusal)

    def leave(self, station: Station, mood: str) -> None:
        """Forget a station whose socket is gone; its edges end now."""
        self._stations.discard(station)
        for edge in tuple(station.edges.values()):
            self.end_edge(edge, f"{station.hello.role.name.lower()} gone: {mood}", FaultCode.GONE)

    def dismiss(self, station: Station, refusal: Refuse) -> None:
        """Close a station's socket for this reason."""
        for edge in tuple(station.edges.values()):
            self.end_edge(edge, refusal.message, FaultCode.GONE)
        station.tell(RELAY_EDGE, refusal)
        station.close(POLICY_VIOLATION, refusal.message)

    async def route(self, station: Station, message: Buffer) -> None:
        """Pass on the records of a message. Waits while a backbone that it is for reads too slowly.

        Raises WireError when the message is not records; the socket must be closed then.
        """
        from_backbone = station.hello.role is Role.BACKBONE
        waiting: set[Station] = set()
        for number, start, stop in record_spans(message):
            if number == RELAY_EDGE:
                self._hear(station, memoryview(message)[start:stop])
                waiting.add(station)
                continue
            edge = station.edges.get(number)
            if edge is None:
                continue  # it ended while this record was on its way; the sender has been told
            try:
                if from_backbone:
                    self._to_worker(edge, message, start, stop)
                else:
                    self._to_backbone(edge, message, start, stop)
            except EdgeBrokenError as error:
                self._break(edge, station, str(error))
            if edge.backbone.outbox.is_full:
                waiting.add(edge.backbone)
        for other in waiting:
            await other.outbox.room()

    def end_edge(self, edge: Edge, mood: str, code: FaultCode, told: Station | None = None) -> None:
        """End an edge and say why to both sides, except to the one that has been told; write the usage record."""
        if self._edges.pop(edge.number, None) is None:
            return
        for side in (edge.backbone, edge.worker):
            side.edges.pop(edge.number, None)
            if side is not told and side in self._stations:
                side.tell(edge.number, Fault(0, code, clipped(mood)))
        log.info("edge %d ended: %s", edge.number, mood)
        self._on_usage(
            Usage(
                self.relay_id,
                edge.number,
                edge.backbone.token_id,
                edge.worker.token_id,
                edge.began,
                self._clock() - edge.began_s,
                edge.ledger.traffic,
                clipped(mood),
            )
        )

    def announce_stop(self, reason: str) -> None:
        """Tell everyone that this relay will stop; nobody new is welcome from now on."""
        self._goaway = reason
        for station in self._stations:
            station.tell(RELAY_EDGE, Goaway(clipped(reason)))

    def close_all(self, reason: str) -> None:
        """Close every socket."""
        for station in self.stations:
            station.close(SERVICE_RESTART, reason)

    def close_stalled(self) -> None:
        """Close sockets whose other end has not taken a message within the write deadline."""
        now, deadline = self._clock(), self.limits.write_deadline_s
        for station in self.stations:
            since = station.outbox.sending_since
            if since is not None and now - since > deadline:
                station.close(POLICY_VIOLATION, f"a message was not read within {deadline:g} s")

    def _of(self, role: Role) -> list[Station]:
        return [station for station in self._stations if station.hello.role is role and not station.is_closing]

    def _open(self, backbone: Station, worker: Station) -> None:
        ledger = EdgeLedger(self.limits.credit_bytes)
        edge = Edge(self._free_number(), backbone, worker, ledger, datetime.now(UTC), self._clock())
        self._edges[edge.number] = backbone.edges[edge.number] = worker.edges[edge.number] = edge
        # the worker gets the hello that it would get over TCP, but for the token and the edge's credit
        limits = backbone.hello.limits
        limits = replace(limits, max_inflight_bytes=min(limits.max_inflight_bytes, self.limits.credit_bytes))
        worker.tell(edge.number, replace(backbone.hello, token="", limits=limits))
        log.info("edge %d: %s with %s", edge.number, backbone.name, worker.name)

    def _free_number(self) -> int:
        while True:
            self._last_edge = self._last_edge % LAST_EDGE + 1
            if self._last_edge not in self._edges:
                return self._last_edge

    def _to_worker(self, edge: Edge, message: Buffer, start: int, stop: int) -> None:
        facts = read_facts(message, start, stop)
        passage = edge.ledger.from_backbone(facts)
        if passage is Passage.BUSY:
            ledger, limit = edge.ledger, self.limits.credit_bytes
            reason = f"{ledger.used_bytes} bytes are under way on this edge, {limit} may be"
            edge.backbone.tell(edge.number, Fault(facts.request, FaultCode.BUSY, reason))
            return
        edge.worker.outbox.put(_piece(message, start, stop))
        if passage is Passage.LAST:
            self.end_edge(edge, "ended by the backbone", FaultCode.GONE, told=edge.worker)

    def _to_backbone(self, edge: Edge, message: Buffer, start: int, stop: int) -> None:
        facts = read_facts(message, start, stop)
        passage = edge.ledger.from_worker(facts)
        if facts.kind == Kind.WELCOME:  # a worker cannot say this of itself: HELLO from it breaks the edge
            edge.backbone.tell(edge.number, replace(edge.worker.hello, name=edge.worker.token_id, token=""))
        edge.backbone.outbox.put(_piece(message, start, stop))
        if passage is Passage.LAST:
            self.end_edge(edge, "ended by the worker", FaultCode.GONE, told=edge.backbone)

    def _break(self, edge: Edge, breaker: Station, reason: str) -> None:
        self.end_edge(edge, reason, FaultCode.PROTOCOL)
        if breaker is edge.worker:  # a worker that lies serves nobody; a backbone keeps its other workers
            breaker.close(POLICY_VIOLATION, reason)

    def _hear(self, station: Station, data: Buffer) -> None:
        frame = decode(data)
        match frame:
            case Ping(number):
                station.tell(RELAY_EDGE, Pong(number))
            case Pong():
                pass
            case _:
                raise WireError(f"{type(frame).__name__} is not for the relay itself")


def _piece(message: Buffer, start: int, stop: int) -> Buffer:
    """One record with its head, in memory of its own: a slow reader must not keep whole bundles alive."""
    start -= RECORD_BYTES
    return message if stop - start == len(message) else bytes(message[start:stop])
