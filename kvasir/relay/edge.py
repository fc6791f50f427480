"""A backbone's edges through one relay: one for each worker, all over one socket.

`keeper` connects to every relay with `RelayEdges.connect`, and the engine's pool takes each edge that opens like one
over TCP. A lost socket ends all of its edges at once; `keeper` connects again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Self

from kvasir.edge.calls import Edge
from kvasir.edge.signs_of_life import KeepAlive
from kvasir.edge.states import EdgeState, SessionState
from kvasir.errors import EdgeError
from kvasir.relay.link import RelayLink
from kvasir.relay.socket import RelaySocket
from kvasir.wire.frames import Frame, Hello, Welcome

log = logging.getLogger(__name__)


class RelayEdge(Edge):
    """One edge to one worker behind a relay. The relay, not the edge, notices when the worker is gone."""

    def __init__(self, hello: Hello, address: str, link: RelayLink, socket: RelaySocket) -> None:
        super().__init__(hello, address)
        self._relay_link = link
        self._socket = socket
        self.node_id = ""  # the worker's public id, which the relay knows from its token

    @property
    def _link(self) -> RelayLink:
        return self._relay_link

    @property
    def number(self) -> int:
        """The edge's number at its relay."""
        return self._relay_link.number

    @property
    def is_available(self) -> bool:
        """Whether the edge takes dispatches now: neither the worker nor the relay pauses, goes away or has closed."""
        return super().is_available and self._socket.state is SessionState.JOINED

    def frame_received(self, frame: Frame) -> None:
        """Take the worker's id from the relay's hello before the welcome; all other frames are the worker's."""
        if isinstance(frame, Hello) and not self.node_id and self.state is EdgeState.HANDSHAKE:
            self.node_id = frame.name
        else:
            super().frame_received(frame)

    def when_welcome(self, call: Callable[[RelayEdge], None]) -> None:
        """Call `call` once the worker's welcome has been accepted."""

        def look(_welcomed: asyncio.Future[Welcome]) -> None:
            if self.state in (EdgeState.OPEN, EdgeState.GOING_AWAY):
                call(self)

        self._welcomed.add_done_callback(look)


class RelayEdges:
    """One relay's socket and the edges over it. Make it with `connect`."""

    def __init__(self, url: str, hello: Hello, on_edge: Callable[[RelayEdge], None]) -> None:
        self._url = url
        self._hello = hello
        self._on_edge = on_edge
        self._socket: RelaySocket | None = None
        self._edges: set[RelayEdge] = set()

    @classmethod
    async def connect(
        cls,
        url: str,
        hello: Hello,
        on_edge: Callable[[RelayEdge], None],
        *,
        deadline_s: float,
        keep_alive: KeepAlive | None = None,
    ) -> Self:
        """Connect to a relay, and call `on_edge` on this event loop for every edge that opens from then on.

        `hello` has the backbone's token. An edge's `closed` is done when the edge ends.
        Raises ConfigError, HandshakeRefused, EdgeTimeout or EdgeError as `RelaySocket.connect` does.
        """
        edges = cls(url, hello, on_edge)
        edges._socket = await RelaySocket.connect(
            url, hello, on_edge=edges._opened, deadline_s=deadline_s, keep_alive=keep_alive
        )
        return edges

    @property
    def edges(self) -> frozenset[RelayEdge]:
        """The edges whose worker has sent its welcome."""
        return frozenset(self._edges)

    @property
    def closed(self) -> asyncio.Future[str]:
        """Resolves to the reason when the socket ends; its edges have then ended too."""
        return self._open_socket().closed

    async def close(self, reason: str = "closed by this side") -> None:
        """Close the socket; every edge ends, and what is in flight fails."""
        await self._open_socket().close(reason)

    def _open_socket(self) -> RelaySocket:
        if self._socket is None:
            raise EdgeError(f"relay {self._url} is not connected")
        return self._socket

    def _opened(self, link: RelayLink, socket: RelaySocket) -> None:
        """Give the link of a new edge an owner, which receives the edge's first frame next."""
        limits = self._hello.limits
        credit_bytes = min(limits.max_inflight_bytes, socket.welcome.limits.max_inflight_bytes)
        hello = replace(self._hello, token="", limits=replace(limits, max_inflight_bytes=credit_bytes))
        edge = RelayEdge(hello, f"{link.number} at {self._url}", link, socket)
        link.owner = edge
        edge.when_welcome(self._take)
        edge.closed.add_done_callback(lambda closed: self._lose(edge, closed.result()))

    def _take(self, edge: RelayEdge) -> None:
        self._edges.add(edge)
        self._on_edge(edge)

    def _lose(self, edge: RelayEdge, reason: str) -> None:
        self._edges.discard(edge)
        log.info("edge %d ended: %s", edge.number, reason)
