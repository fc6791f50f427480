"""The engine's workers: edges over TCP and through relays, kept open by an event loop in a thread of its own.

Implements `Transport`. The engine's thread calls it; sockets are served here, so that computation never delays a
reply or a sign of life. A worker at an address is dialled again with growing, jittered delays when it goes away; behind
relays workers come and go, and each edge is a member for as long as it lasts.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from backbone.engine.swarm.measured import Measured
from backbone.engine.swarm.placement import ReplicaMap
from backbone.engine.swarm.worker_address import WorkerAddress
from backbone.engine.swarm.worker_health import Health, redial_delay_s
from backbone.engine.swarm.worker_meter import WorkerMeter
from kvasir.edge.calls import Edge
from kvasir.edge.tcp_edge import TcpEdge
from kvasir.errors import EdgeError, EdgeTimeout
from kvasir.experts import FloatRows
from kvasir.kernels.api import EncodedRows, Pairs, RowFormat
from kvasir.kernels.sums import RowSums
from kvasir.relay.directory import RelayDirectory
from kvasir.relay.edge import RelayEdge
from kvasir.relay.keeper import RelayKeeper
from kvasir.wire.frames import Hello, ReplyType, SumOrder

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_NAMES = 65_536  # of edges whose node is remembered after they have ended


@dataclass(slots=True)
class _Member:
    """One worker as the pool sees it. Written by the pool's thread, read by the engine's."""

    name: str
    meter: WorkerMeter
    edge: Edge | None = None
    health: Health = field(default_factory=Health)
    problem: str = "not yet connected"
    bytes_before: tuple[int, int] = (0, 0)
    connected: threading.Event = field(default_factory=threading.Event)

    def bytes_moved(self) -> tuple[int, int]:
        edge = self.edge
        now = (edge.bytes_sent, edge.bytes_received) if edge is not None else (0, 0)
        return self.bytes_before[0] + now[0], self.bytes_before[1] + now[1]


class EdgePool:
    """Edges to a list of addresses, and to whoever joins the relays. `start` it, give it to the dispatcher, `close` it.

    `relays` lists the relays to dial; `hello` then holds this backbone's token.
    """

    def __init__(
        self,
        addresses: Sequence[WorkerAddress],
        hello: Hello,
        *,
        relays: RelayDirectory | None = None,
        reply: ReplyType = ReplyType.F32,
        connect_deadline_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._addresses = {str(address): address for address in addresses}
        # replaced, never changed: the engine's thread looks at it while workers come and go
        self._members = {name: _Member(name, WorkerMeter(clock)) for name in self._addresses}
        self._hello = hello
        self._hello_to_addresses = replace(hello, token="")  # the token is for relays alone
        self._relays = relays
        self._reply = reply
        self._connect_deadline_s = connect_deadline_s
        self._clock = clock
        self._jitter = jitter
        self._nodes = OrderedDict[str, str]()  # by member, those that left lately included
        self._coverage = ReplicaMap({})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kvasir-edges", daemon=True)
        self._tried: list[Future[None]] = []
        self._keepers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Dial every worker and relay; returns when each has been reached, has refused, or has failed once."""
        self._thread.start()
        for name, address in self._addresses.items():
            tried: Future[None] = Future()
            self._tried.append(tried)
            self._loop.call_soon_threadsafe(self._keep_in_loop, self._members[name], address, tried)
        if self._relays is not None:
            self._tried.append(asyncio.run_coroutine_threadsafe(self._dial_relays(self._relays), self._loop))
        for tried in self._tried:
            tried.result(self._connect_deadline_s + 5.0)

    def close(self) -> None:
        """Close all edges and end the thread."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._loop.close()

    def __enter__(self) -> EdgePool:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def wait_connected(self, worker_id: str, deadline_s: float) -> None:
        """Wait until a worker is connected. Raises EdgeTimeout with what stood in the way."""
        member = self._members[worker_id]
        if not member.connected.wait(deadline_s):
            raise EdgeTimeout(f"worker {worker_id} was not connected within {deadline_s:g} s: {member.problem}")

    @property
    def problems(self) -> dict[str, str]:
        """Workers that are not connected now, with the reason."""
        return {name: member.problem for name, member in self._members.items() if member.edge is None}

    @property
    def bytes_moved(self) -> dict[str, tuple[int, int]]:
        """Bytes sent to and received from each worker since the start, headers included."""
        return {name: member.bytes_moved() for name, member in self._members.items()}

    def coverage(self) -> ReplicaMap:
        """What the connected workers hold."""
        return self._coverage

    def live(self) -> frozenset[str]:
        """Connected workers that are neither paused nor left out after a failure."""
        now = self._clock()
        return frozenset(
            name
            for name, member in self._members.items()
            if member.edge is not None and member.edge.is_available and member.health.is_live(now)
        )

    def measurements(self) -> Mapping[str, Measured]:
        """How fast each worker answers, and its share of the work."""
        return {
            name: replace(member.meter.measured, share=member.health.share) for name, member in self._members.items()
        }

    def dispatch(
        self,
        worker_id: str,
        layer: int,
        rows: EncodedRows,
        row_format: RowFormat,
        pair_rows: Pairs,
        pair_ids: Pairs,
        deadline_s: float,
    ) -> Future[FloatRows]:
        """Send at once; see Transport. Raises EdgeError when the worker is not connected."""
        member, edge = self._connected(worker_id)
        call = edge.dispatch(layer, rows, row_format, pair_rows, pair_ids, deadline_s=deadline_s, reply=self._reply)
        return self._watched(member, len(pair_ids), rows.nbytes, call)

    def dispatch_sums(
        self,
        worker_id: str,
        layer: int,
        rows: EncodedRows,
        row_format: RowFormat,
        pair_rows: Pairs,
        pair_ids: Pairs,
        order: SumOrder,
        deadline_s: float,
    ) -> Future[RowSums]:
        """As `dispatch`; see SumTransport."""
        member, edge = self._connected(worker_id)
        call = edge.dispatch_sums(layer, rows, row_format, pair_rows, pair_ids, order, deadline_s=deadline_s)
        return self._watched(member, len(pair_ids), rows.nbytes, call)

    def _connected(self, worker_id: str) -> tuple[_Member, Edge]:
        member = self._members.get(worker_id)
        edge = member.edge if member is not None else None
        if member is None or edge is None or not self._thread.is_alive():
            problem = member.problem if member is not None else "it has left its relay"
            raise EdgeError(f"worker {worker_id} is not connected: {problem}")
        return member, edge

    def _watched(self, member: _Member, n_pairs: int, n_bytes: int, call: Coroutine[Any, Any, T]) -> Future[T]:
        stop = member.meter.start(n_pairs, n_bytes)
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        future.add_done_callback(stop)
        future.add_done_callback(lambda done: self._note_success(member, done))
        return future

    def node_of(self, worker_id: str) -> str:
        """The node behind a relay's edge, also after the edge has ended; whoever is no node is called by its name."""
        return self._nodes.get(worker_id, worker_id)

    def report(self, worker_id: str, reason: str) -> None:
        """Leave a worker out for a while; the time doubles with each failure."""
        member = self._members.get(worker_id)
        if member is not None:
            member.health = member.health.after_failure(self._clock(), reason)

    def _note_success(self, member: _Member, done: Future[Any]) -> None:
        if not done.cancelled() and done.exception() is None:
            member.health = member.health.after_success()

    async def _dial_relays(self, directory: RelayDirectory) -> None:
        """Follow the directory from now on; returns when every relay that is listed was tried once."""
        keeper = RelayKeeper(directory, self._hello, self._add_edge, connect_deadline_s=self._connect_deadline_s)
        self._keepers.append(self._loop.create_task(keeper.run()))
        await keeper.has_tried_all.wait()

    def _add_edge(self, edge: RelayEdge) -> None:
        """A worker behind a relay is there; it is a new member, whoever it was before."""
        member = _Member(edge.address, WorkerMeter(self._clock))
        if edge.node_id:
            self._nodes[member.name] = edge.node_id
            while len(self._nodes) > MAX_NAMES:
                self._nodes.popitem(last=False)
        self._members = {**self._members, member.name: member}
        self._set_edge(member, edge)
        edge.closed.add_done_callback(lambda closed: self._drop_edge(member, closed.result()))

    def _drop_edge(self, member: _Member, problem: str) -> None:
        member.problem = problem
        self._lose_edge(member)
        self._members = {name: other for name, other in self._members.items() if other is not member}

    def _keep_in_loop(self, member: _Member, address: WorkerAddress, tried: Future[None]) -> None:
        self._keepers.append(self._loop.create_task(self._keep(member, address, tried)))

    async def _keep(self, member: _Member, address: WorkerAddress, tried: Future[None]) -> None:
        """Hold one edge open for ever."""
        n_failures = 0
        while True:
            try:
                edge = await TcpEdge.connect(
                    address.host, address.port, self._hello_to_addresses, deadline_s=self._connect_deadline_s
                )
            except EdgeError as error:
                member.problem = str(error)
                logger.log(logging.WARNING if n_failures == 0 else logging.INFO, "%s", error)
                n_failures += 1
            else:
                n_failures = 0
                self._set_edge(member, edge)
                if not tried.done():
                    tried.set_result(None)
                member.problem = await asyncio.shield(edge.closed)
                self._lose_edge(member)
            if not tried.done():
                tried.set_result(None)
            await asyncio.sleep(redial_delay_s(n_failures, self._jitter()))

    def _set_edge(self, member: _Member, edge: Edge) -> None:
        member.edge, member.problem = edge, ""
        member.connected.set()
        self._publish()

    def _lose_edge(self, member: _Member) -> None:
        logger.warning("worker %s is gone: %s", member.name, member.problem)
        member.bytes_before = member.bytes_moved()
        member.edge = None
        member.connected.clear()
        self._publish()

    def _publish(self) -> None:
        held = {name: member.edge.coverage for name, member in self._members.items() if member.edge is not None}
        self._coverage = ReplicaMap.build(held)

    async def _close(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for member in self._members.values():
            if member.edge is not None:
                await member.edge.close()
