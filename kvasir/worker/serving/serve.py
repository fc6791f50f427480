"""The worker's TCP server: it accepts backbones, enforces deadlines and stops in order.

`__main__` runs one per process. Each backbone has its own connection; they share the compute queue only, where they
take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from typing import cast

from kvasir.edge.link import LINGER_S, TcpLink
from kvasir.errors import ConfigError
from kvasir.wire.frames import Refuse, RefuseCode
from kvasir.wire.header import MAX_INFLIGHT_BYTES, Limits
from kvasir.worker.serving.compute import ComputeQueue
from kvasir.worker.serving.config import WorkerConfig
from kvasir.worker.serving.connection import Connection, Service
from kvasir.worker.serving.holdings import Holdings
from kvasir.worker.serving.watch import overdue

WATCH_EVERY_S = 1.0
STRANGERS = 64  # sockets without a hello yet, in addition to the welcome ones

log = logging.getLogger(__name__)


class WorkerServer:
    """Serves one slice. Call `start`, then `stop`, on the same event loop."""

    def __init__(self, config: WorkerConfig, holdings: Holdings) -> None:
        self._config = config
        self._limits = config.limits
        most = min(self._limits.max_inflight_bytes, MAX_INFLIGHT_BYTES)
        self._service = Service(holdings, ComputeQueue(holdings.layers), Limits(max_inflight_bytes=most))
        self._connections: set[Connection] = set()
        self._n_accepted = 0
        self._is_stopping = False
        self._server: asyncio.Server | None = None
        self._watching: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def start(self) -> tuple[str, int]:
        """Listen and return the bound host and port. Raises ConfigError if the address cannot be bound."""
        loop = asyncio.get_running_loop()
        host, port = self._config.host, self._config.port
        try:
            self._server = await loop.create_server(lambda: cast("TcpLink", self._new_connection().link), host, port)
        except OSError as error:
            raise ConfigError(
                f"--listen {host}:{port} cannot be bound: {os.strerror(error.errno) if error.errno else error}"
            ) from error
        self._service.queue.start()
        self._watching = loop.create_task(self._watch())
        bound = self._server.sockets[0].getsockname()
        return bound[0], bound[1]

    async def stop(self, reason: str) -> None:
        """Announce the end, answer the requests in flight (within the stop deadline), and close everything."""
        self._is_stopping = True
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.say_goodbye(reason)
        await self._until(lambda: not any(c.owes for c in self._connections), self._limits.deadlines.stop_s)
        for connection in tuple(self._connections):
            connection.link.close(reason)
        await self._until(lambda: not self._connections, 2 * LINGER_S)
        for connection in tuple(self._connections):
            connection.link.abort(reason)
        self._service.queue.stop()
        if self._watching is not None:
            self._watching.cancel()

    def refusal(self) -> Refuse | None:
        """Return a refusal for a further backbone, or None."""
        if self._is_stopping:
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

    def _new_connection(self) -> Connection:
        self._n_accepted += 1
        connection = Connection(self._service, self, self._n_accepted)
        self._connections.add(connection)
        if len(self._connections) > self._limits.max_clients + STRANGERS:
            asyncio.get_running_loop().call_soon(connection.link.abort, "too many connections")
        return connection

    async def _until(self, condition: Callable[[], bool], deadline_s: float) -> None:
        """Wait until the connections meet a condition, or the deadline passes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            for connection in tuple(self._connections):
                reason = overdue(loop.time(), connection.moments, self._limits.deadlines)
                if reason is not None:
                    connection.end(reason)
