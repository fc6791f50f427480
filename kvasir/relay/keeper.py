"""A backbone's sockets to all relays that the directory lists; lost ones are connected again.

The engine's pool runs one on its event loop and takes the edges. While the directory cannot be read, the known relays
are kept; a relay that is no longer listed is kept until its socket is lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping

from kvasir.edge.reconnect import failures_after, reconnect_delay_s
from kvasir.edge.signs_of_life import KeepAlive
from kvasir.errors import ConfigError, EdgeError
from kvasir.relay.directory import REFRESH_EVERY_S, RelayDirectory
from kvasir.relay.edge import RelayEdge, RelayEdges
from kvasir.wire.frames import Hello

log = logging.getLogger(__name__)


class RelayKeeper:
    """Keeps one socket to each relay. Start `run` as a task; cancel the task to close all sockets."""

    def __init__(
        self,
        directory: RelayDirectory,
        hello: Hello,
        on_edge: Callable[[RelayEdge], None],
        *,
        connect_deadline_s: float = 10.0,
        refresh_s: float = REFRESH_EVERY_S,
        jitter: Callable[[], float] = random.random,
        keep_alive: KeepAlive | None = None,
    ) -> None:
        self._directory = directory
        self._hello = hello
        self._on_edge = on_edge
        self._connect_deadline_s = connect_deadline_s
        self._refresh_s = refresh_s
        self._jitter = jitter
        self._keep_alive = keep_alive
        self._listed: Mapping[str, str] = {}
        self._is_blind = False  # the directory could not be read the last time
        self._keeping: dict[str, asyncio.Task[None]] = {}  # by address
        self._problems: dict[str, str] = {}
        self.has_tried_all = asyncio.Event()  # each relay that was listed at first has been reached or has failed

    @property
    def problems(self) -> Mapping[str, str]:
        """The reasons why relays are not connected now, by address."""
        return dict(self._problems)

    async def run(self) -> None:
        """Follow the directory until cancelled."""
        try:
            while True:
                await self._read_directory()
                for url in self._listed.values():
                    if url not in self._keeping:
                        self._problems[url] = "not yet connected"
                        self._keeping[url] = asyncio.create_task(self._keep(url))
                self._forget_ended()
                self._note_tries()
                await asyncio.sleep(self._refresh_s)
        finally:
            for task in self._keeping.values():
                task.cancel()
            await asyncio.gather(*self._keeping.values(), return_exceptions=True)

    async def _read_directory(self) -> None:
        try:
            self._listed = await self._directory.listed()
            self._is_blind = False
        except Exception as error:  # of any client; the known relays stay
            if not self._is_blind:
                log.warning("the relay directory cannot be read (%s); known relays are kept", error)
            self._is_blind = True

    async def _keep(self, url: str) -> None:
        """Keep one socket open as long as the relay is listed."""
        loop = asyncio.get_running_loop()
        n_failures = 0
        while url in self._listed.values():
            lasted_s = 0.0
            try:
                edges = await RelayEdges.connect(
                    url, self._hello, self._on_edge, deadline_s=self._connect_deadline_s, keep_alive=self._keep_alive
                )
            except (EdgeError, ConfigError) as error:
                self._set_problem(url, str(error), n_failures)
            else:
                began = loop.time()
                self._problems.pop(url, None)
                self._note_tries()
                await self._until_closed(edges)
                self._set_problem(url, edges.closed.result(), 0)
                lasted_s = loop.time() - began
            n_failures = failures_after(n_failures, lasted_s)
            await asyncio.sleep(reconnect_delay_s(n_failures, self._jitter()))

    async def _until_closed(self, edges: RelayEdges) -> None:
        try:
            await asyncio.shield(edges.closed)
        except asyncio.CancelledError:
            await edges.close()
            raise

    def _set_problem(self, url: str, problem: str, n_failures: int) -> None:
        self._problems[url] = problem
        log.log(logging.WARNING if n_failures == 0 else logging.INFO, "%s", problem)
        self._note_tries()

    def _note_tries(self) -> None:
        if all(self._problems.get(url) != "not yet connected" for url in self._keeping):
            self.has_tried_all.set()

    def _forget_ended(self) -> None:
        for url in [url for url, task in self._keeping.items() if task.done()]:
            del self._keeping[url]
            self._problems.pop(url, None)
