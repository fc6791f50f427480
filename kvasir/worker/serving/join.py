"""The worker behind a relay: one outgoing connection, kept open, that carries the edges of all its backbones.

`__main__` runs one for `kvasir-worker join --slice`, an agent one for each set of holdings. The same `Connection` and
compute queue serve requests as over TCP; only the link differs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

from kvasir import __version__
from kvasir.edge.reconnect import failures_after, reconnect_delay_s
from kvasir.edge.signs_of_life import KeepAlive
from kvasir.errors import EdgeError
from kvasir.relay.link import RelayLink
from kvasir.relay.socket import RelaySocket
from kvasir.wire.frames import Hello, Refuse, RefuseCode, Role
from kvasir.wire.header import MAX_INFLIGHT_BYTES, Limits
from kvasir.worker.serving.compute import ComputeQueue
from kvasir.worker.serving.config import ClientLimits, RelayAccess
from kvasir.worker.serving.connection import Connection, Service
from kvasir.worker.serving.holdings import Holdings

CONNECT_DEADLINE_S = 15.0

log = logging.getLogger(__name__)


class RelayWorker:
    """Serves holdings through one relay. Call `run`; `stop` ends it in order."""

    def __init__(
        self,
        relay: RelayAccess,
        holdings: Holdings,
        limits: ClientLimits | None = None,
        *,
        on_joined: Callable[[], None] = lambda: None,
        on_lost: Callable[[str], None] = lambda _reason: None,
        jitter: Callable[[], float] = random.random,
        keep_alive: KeepAlive | None = None,
    ) -> None:
        self._relay = relay
        self._limits = limits or ClientLimits()
        self._on_joined = on_joined
        self._on_lost = on_lost
        self._jitter = jitter
        self._keep_alive = keep_alive
        most = min(self._limits.max_inflight_bytes, MAX_INFLIGHT_BYTES)
        self._service = Service(holdings, ComputeQueue(holdings.layers), Limits(max_inflight_bytes=most))
        self._connections: set[Connection] = set()
        self._n_edges = 0
        self._stopping: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Stay joined until `stop`; dial again, without end, when the relay is away or refuses."""
        loop = asyncio.get_running_loop()
        self._service.queue.start()
        n_failures = 0
        try:
            while not self._stopping.done():
                lasted_s = 0.0
                try:
                    socket = await self._dial()
                except EdgeError as error:
                    log.warning("%s", error)
                    self._on_lost(str(error))
                else:
                    began = loop.time()
                    await self._serve(socket)
                    lasted_s = loop.time() - began
                n_failures = failures_after(n_failures, lasted_s)
                await self._pause(reconnect_delay_s(n_failures, self._jitter()))
        finally:
            self._service.queue.stop()

    def stop(self, reason: str) -> None:
        """Make `run` announce the end, answer the requests in flight (within the stop deadline), and return."""
        if not self._stopping.done():
            self._stopping.set_result(reason)

    # Called by connections

    def refusal(self) -> Refuse | None:
        """Return a refusal for a further backbone, or None."""
        if self._stopping.done():
            return Refuse(RefuseCode.STOPPING, "this worker is about to stop")
        n_welcome = sum(connection.is_welcome for connection in self._connections)
        if n_welcome >= self._limits.max_clients:
            return Refuse(RefuseCode.FULL, f"{n_welcome} backbones are connected, {self._limits.max_clients} may be")
        return None

    def connection_changed(self, connection: Connection) -> None:
        """Forget a connection that is gone, and wake the waiting tasks."""
        if connection.link.is_gone:
            self._connections.discard(connection)
        self._changed.set()

    async def _dial(self) -> RelaySocket:
        holdings = self._service.holdings
        hello = Hello(
            Role.WORKER,
            holdings.model_fingerprint,
            holdings.kernel.fingerprint,
            holdings.kernel.name,
            self._service.limits,
            f"kvasir-worker {__version__}",
            self._relay.token,
        )
        socket = await RelaySocket.connect(
            self._relay.url,
            hello,
            on_edge=self._edge_opened,
            deadline_s=CONNECT_DEADLINE_S,
            keep_alive=self._keep_alive,
        )
        log.info("joined %s", self._relay.url)
        self._on_joined()
        return socket

    async def _serve(self, socket: RelaySocket) -> None:
        """Serve until the socket is closed, or until this worker has stopped in order."""
        await asyncio.wait([socket.closed, self._stopping], return_when=asyncio.FIRST_COMPLETED)
        if socket.closed.done():
            log.warning("lost: %s", socket.closed.result())
            self._on_lost(socket.closed.result())
            return
        reason = self._stopping.result()
        for connection in self._connections:
            connection.say_goodbye(reason)
        await self._until_nothing_is_owed()
        await socket.close(reason)

    def _edge_opened(self, link: RelayLink, socket: RelaySocket) -> None:
        del socket
        self._n_edges += 1
        connection = Connection(self._service, self, self._n_edges, link)
        link.owner = connection
        self._connections.add(connection)

    async def _until_nothing_is_owed(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.deadlines.stop_s):
                while any(connection.owes for connection in self._connections):
                    self._changed.clear()
                    await self._changed.wait()

    async def _pause(self, seconds: float) -> None:
        await asyncio.wait([self._stopping], timeout=seconds)
