"""The worker's TCP server: it accepts backbones, enforces deadlines and stops in order.

`__main__` runs one per process. Each backbone has its own connection; they share the compute queue only, where they
take turns.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import cast

from kvasir.edge.link import LINGER_S, TcpLink
from kvasir.errors import ConfigError
from kvasir.wire.header import MAX_INFLIGHT_BYTES, Limits
from kvasir.worker.serving.compute import ComputeQueue
from kvasir.worker.serving.config import WorkerConfig
from kvasir.worker.serving.connection import Connection, Registry, Service
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
        self._registry = Registry(self._limits.max_clients)
        self._n_accepted = 0
        self._server: asyncio.Server | None = None
        self._watching: asyncio.Task[None] | None = None

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
        self._registry.is_stopping = True
        if self._server is not None:
            self._server.close()
        for connection in self._registry.connections:
            connection.say_goodbye(reason)
        await self._registry.until(lambda: not self._registry.owes(), self._limits.deadlines.stop_s)
        for connection in tuple(self._registry.connections):
            connection.link.close(reason)
        await self._registry.until(lambda: not self._registry.connections, 2 * LINGER_S)
        for connection in tuple(self._registry.connections):
            connection.link.abort(reason)
        self._service.queue.stop()
        if self._watching is not None:
            self._watching.cancel()

    def _new_connection(self) -> Connection:
        self._n_accepted += 1
        connection = Connection(self._service, self._registry, self._n_accepted)
        self._registry.connections.add(connection)
        if len(self._registry.connections) > self._limits.max_clients + STRANGERS:
            asyncio.get_running_loop().call_soon(connection.link.abort, "too many connections")
        return connection

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            for connection in tuple(self._registry.connections):
                reason = overdue(loop.time(), connection.moments, self._limits.deadlines)
                if reason is not None:
                    connection.end(reason)
