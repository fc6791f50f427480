"""The backbone's end of an edge over TCP: connects to the worker, shakes hands, keeps the edge alive.

The engine's pool opens one for each worker address. Everything else that an edge does is in `edge.calls`.
"""

from __future__ import annotations

import asyncio
from typing import Self

from kvasir.edge.calls import Edge
from kvasir.edge.link import TcpLink
from kvasir.edge.signs_of_life import KeepAlive, KeepAliveAction, SignsOfLife
from kvasir.errors import EdgeError, EdgeTimeout
from kvasir.wire.frames import Hello, Ping
from kvasir.wire.header import PROTOCOL_LIMITS


class TcpEdge(Edge):
    """One edge to one worker over TCP. Make it with `connect`; use it on the event loop that made it."""

    def __init__(self, hello: Hello, address: str, keep_alive: KeepAlive) -> None:
        super().__init__(hello, address)
        self._keep_alive = keep_alive
        self._tcp = TcpLink(self, hello.limits)
        self._signs = SignsOfLife(self._loop.time(), keep_alive)
        self._n_pings = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _link(self) -> TcpLink:
        return self._tcp

    @classmethod
    async def connect(
        cls, host: str, port: int, hello: Hello, *, deadline_s: float, keep_alive: KeepAlive | None = None
    ) -> Self:
        """Connect and shake hands within `deadline_s` seconds.

        Raises HandshakeRefused when the worker refuses or has another model or kernel, EdgeTimeout at the deadline,
        EdgeError when there is no worker at the address or it does not speak this protocol.
        """
        edge = cls(hello, f"{host}:{port}", keep_alive or KeepAlive())
        is_open = False
        try:
            async with asyncio.timeout(deadline_s):
                await edge._loop.create_connection(lambda: edge._link, host, port)
                edge._link.send(hello, PROTOCOL_LIMITS)
                await asyncio.shield(edge._welcomed)  # `_fail` ends it, not the deadline
                is_open = True
        except TimeoutError as error:
            raise EdgeTimeout(f"worker {edge._address}: no welcome within {deadline_s} s") from error
        except OSError as error:
            raise EdgeError(f"worker {edge._address} cannot be reached: {error}") from error
        finally:
            if not is_open:
                edge._fail(EdgeError("the handshake was given up"))
        edge._look_at_clock()
        return edge

    def _fail(self, error: EdgeError) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super()._fail(error)

    def _look_at_clock(self) -> None:
        now = self._loop.time()
        self._signs.heard = self._link.last_received
        action = self._signs.look(now, n_unsent=0, is_listening=True)
        if action is KeepAliveAction.GIVE_UP:
            self._fail(EdgeError(f"worker {self._address} gave no sign of life for {self._signs.silent_s(now):.1f} s"))
            return
        if action is KeepAliveAction.PING:
            self._n_pings += 1
            self._link.send(Ping(self._n_pings), self.welcome.limits)
        self._timer = self._loop.call_later(self._keep_alive.interval_s / 2, self._look_at_clock)
