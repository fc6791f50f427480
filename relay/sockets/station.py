"""One joined socket and its edges, as the hub holds them.

`application` makes a station when a hello was accepted. It knows how to be told things and how to be closed; which
frames go where is the hub's business.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

from kvasir.relay.records import record
from kvasir.wire.frames import Frame, Hello
from relay.sockets.bridge import EdgeLedger
from relay.sockets.outbox import Outbox

CLOSE_LINGER_S = 2.0  # how long a socket's last records may take to leave

CloseSocket = Callable[[int, str], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Edge:
    """One backbone and one worker, joined."""

    number: int
    backbone: Station
    worker: Station
    ledger: EdgeLedger
    began: datetime
    began_s: float


@dataclass(slots=True, eq=False)
class Station:
    """A node at the other end of a socket."""

    hello: Hello
    token_id: str
    name: str
    outbox: Outbox
    close_socket: CloseSocket
    edges: dict[int, Edge] = field(default_factory=dict)
    close_reason: str = ""
    closing: asyncio.Task[None] | None = None

    @property
    def is_closing(self) -> bool:
        """Whether nothing more is taken from this socket."""
        return self.closing is not None

    def tell(self, edge: int, frame: Frame) -> None:
        """Queue a frame of the relay's own."""
        self.outbox.put(record(edge, frame))

    def close(self, code: int, reason: str) -> None:
        """Send what is queued, then close the socket with this reason. Returns at once."""
        if self.closing is None:
            self.close_reason = reason
            self.closing = asyncio.get_running_loop().create_task(self._close(code, reason))

    async def _close(self, code: int, reason: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LINGER_S):
                await self.outbox.flush()
        await self.close_socket(code, reason)
