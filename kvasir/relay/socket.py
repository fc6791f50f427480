"""One WebSocket to a relay, for either role: opening, records in and out, signs of life.

Backbones (`relay.edge`) and workers (`worker.serving.join`) have one for each relay. Frames of many edges share it;
those that are queued while a message is being sent form the next one. The owner connects again when it is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Self

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from kvasir.edge.signs_of_life import KEEP_ALIVE, LOOK_EVERY_S, KeepAlive, KeepAliveAction, SignsOfLife
from kvasir.edge.states import SessionState
from kvasir.errors import EdgeError, EdgeTimeout, HandshakeRefused, WireError
from kvasir.relay.connection import RelayConnection
from kvasir.relay.directory import checked_url
from kvasir.relay.link import RelayLink
from kvasir.relay.records import MAX_BUNDLE_BYTES, MAX_MESSAGE_BYTES, RECORD, RELAY_EDGE, opening_message, record_spans
from kvasir.wire.codec import decode
from kvasir.wire.frames import Frame, Goaway, Hello, Ping, Pong, Refuse, Role, Welcome
from kvasir.wire.header import HEADER_BYTES, Buffer, Kind

CLOSE_DEADLINE_S = 2.0
KIND_AT = 5  # the place of the kind in a frame's header
# the first frame of an edge, by the role that receives it; the relay's hello names the worker to the backbone
FIRST_OF_EDGE = {Role.WORKER: {Kind.HELLO}, Role.BACKBONE: {Kind.HELLO, Kind.WELCOME}}

log = logging.getLogger(__name__)

OnEdge = Callable[[RelayLink, "RelaySocket"], None]


class RelaySocket:
    """A session at a relay. `closed` resolves to the reason when it ends; its edges are then lost."""

    def __init__(self, url: str, hello: Hello, on_edge: OnEdge, keep_alive: KeepAlive | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._url = url
        self._hello = hello
        self._on_edge = on_edge
        self._keep_alive = keep_alive or KEEP_ALIVE
        self._links: dict[int, RelayLink] = {}
        self._outgoing: deque[tuple[RelayLink | None, list[Buffer], int, int]] = deque()
        self._has_outgoing = asyncio.Event()
        self._is_idle = asyncio.Event()  # all that was posted has been sent
        self._is_idle.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._connection: RelayConnection | None = None
        self._answered: asyncio.Future[Welcome] = self._loop.create_future()  # or why the opening failed
        self._parting_reason = ""
        self.state = SessionState.CONNECTING
        self.closed: asyncio.Future[str] = self._loop.create_future()

    @classmethod
    async def connect(
        cls,
        url: str,
        hello: Hello,
        *,
        on_edge: OnEdge,
        deadline_s: float,
        keep_alive: KeepAlive | None = None,
    ) -> Self:
        """Connect and have the hello accepted within `deadline_s` seconds.

        `on_edge` is called for every edge that opens, and must set the link's owner. Raises ConfigError for an invalid
        address, HandshakeRefused with the relay's reason, EdgeTimeout, or EdgeError when there is no relay.
        """
        socket = cls(checked_url(url), hello, on_edge, keep_alive)
        try:
            async with asyncio.timeout(deadline_s):
                await socket._open()
        except TimeoutError as error:
            socket._abort("no answer before the deadline")
            raise EdgeTimeout(f"relay {url}: no answer to the hello within {deadline_s:g} s") from error
        except (OSError, WebSocketException) as error:
            socket._abort("it cannot be reached")
            raise EdgeError(f"relay {url} cannot be reached: {error}") from error
        except WireError as error:
            socket._abort("it does not speak this protocol")
            raise EdgeError(f"relay {url} does not speak this protocol: {error}") from error
        except BaseException:
            socket._abort("the handshake was given up")
            raise
        socket._tasks = [socket._loop.create_task(work) for work in (socket._send(), socket._stay_alive())]
        for task in socket._tasks:
            task.add_done_callback(socket._task_ended)
        return socket

    @property
    def welcome(self) -> Welcome:
        """The relay's answer, whose limits have the credit of an edge. Raises EdgeError before it has arrived."""
        if self.state is SessionState.CONNECTING:
            raise EdgeError(f"relay {self._url} has not answered yet")
        return self._answered.result()

    async def close(self, reason: str) -> None:
        """Send what is queued, close, and end every edge."""
        if self.state in (SessionState.JOINED, SessionState.GOING_AWAY):
            self._enter(SessionState.PARTING)
            self._parting_reason = reason
        if self.state is SessionState.PARTING:
            with suppress(TimeoutError, ConnectionClosed):
                async with asyncio.timeout(CLOSE_DEADLINE_S):
                    await self._is_idle.wait()
                    await self._open_connection().close(reason=reason[:100])
        self._abort(reason)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Called by links

    def post(self, link: RelayLink | None, buffers: list[Buffer], n_bytes: int) -> None:
        """Queue one frame of an edge, or one for the relay itself when there is no link."""
        self._outgoing.append((link, buffers, link.number if link is not None else RELAY_EDGE, n_bytes))
        self._has_outgoing.set()
        self._is_idle.clear()

    def forget(self, link: RelayLink) -> None:
        """Drop what still arrives for an edge."""
        self._links.pop(link.number, None)

    async def _open(self) -> None:
        create = partial(RelayConnection, on_message=self._received, on_lost=self._lost)
        connection: RelayConnection = await connect(  # type: ignore[assignment]  # it is what `create` makes
            self._url,
            create_connection=create,  # type: ignore[arg-type]  # declared as a class, but any callable does
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            ping_interval=None,  # `_stay_alive` does that, and counts any byte as a sign of life
            open_timeout=None,
            proxy=None,
        )
        self._connection = connection
        opening = opening_message(self._hello)
        await connection.send_message([opening], len(opening))
        await self._answered
        if self.state is SessionState.CLOSED:
            raise EdgeError(f"relay {self._url} cannot be reached: {self.closed.result()}")

    def _received(self, message: Buffer) -> None:
        """Take one message; an error in it ends the socket."""
        if self.state is SessionState.CLOSED:
            return  # it was received together with what ended the socket
        try:
            self._take(message)
        except (WireError, HandshakeRefused) as error:
            self._fail(error, str(error))
        except Exception as error:  # a defect must not leave an open socket that nothing serves
            log.exception("socket to relay %s failed", self._url)
            self._fail(error, f"{type(error).__name__}: {error}")

    def _lost(self) -> None:
        """End the socket: the connection is lost."""
        if self._connection is None:
            return  # it never opened: `connect` raises the reason
        error = self._connection.close_exc
        close = error.rcvd or error.sent
        self._fail(error, f"socket closed ({close.code}: {close.reason})" if close else "connection lost")

    def _fail(self, error: Exception, reason: str) -> None:
        """End the socket; during the opening `connect` raises the error itself."""
        if self._answered.done():
            self._abort(f"relay {self._url}: {reason}")
        else:
            self._answered.set_exception(error)
            self._answered.exception()  # retrieved, in case that the deadline has passed

    def _take(self, message: Buffer) -> None:
        view = memoryview(message)
        for number, start, stop in record_spans(message):
            if number == RELAY_EDGE:
                self._from_relay(decode(view[start:stop]))
                continue
            link = self._links.get(number)
            if link is None:
                if stop - start < HEADER_BYTES or message[start + KIND_AT] not in FIRST_OF_EDGE[self._hello.role]:
                    continue  # for an edge that this side has closed
                link = self._links[number] = RelayLink(number, self, self._loop.time)
                self._on_edge(link, self)
            link.take(view[start:stop])

    def _from_relay(self, frame: Frame) -> None:
        """Handle a frame of the relay itself."""
        match frame:
            case Welcome():
                if not self._answered.done():
                    self._enter(SessionState.JOINED)
                    self._answered.set_result(frame)
            case Refuse(code, message):
                raise HandshakeRefused(f"relay {self._url} refused ({code.name}): {message}")
            case Goaway():
                if self.state is SessionState.JOINED:
                    self._enter(SessionState.GOING_AWAY)
            case Ping() | Pong():
                pass
            case _:
                raise WireError(f"{type(frame).__name__} from the relay itself is out of place")

    async def _send(self) -> None:
        connection = self._open_connection()
        with suppress(ConnectionClosed):  # `_lost` has the reason
            while True:
                await self._has_outgoing.wait()
                taken, parts, n_bytes = self._next_bundle()
                await connection.send_message(parts, n_bytes)
                for link, n_bytes in taken:
                    if link is not None:
                        link.sent(n_bytes)
                if not self._outgoing:
                    self._is_idle.set()

    def _next_bundle(self) -> tuple[list[tuple[RelayLink | None, int]], list[Buffer], int]:
        """Return the frames of the next message (link and size of each), their buffers, and the bytes of all."""
        taken, parts, total = list[tuple[RelayLink | None, int]](), list[Buffer](), 0
        while self._outgoing and (not taken or total + self._outgoing[0][3] <= MAX_BUNDLE_BYTES):
            link, buffers, number, n_bytes = self._outgoing.popleft()
            parts += [RECORD.pack(number, n_bytes - RECORD.size), *buffers]
            taken.append((link, n_bytes))
            total += n_bytes
        if not self._outgoing:
            self._has_outgoing.clear()
        return taken, parts, total

    async def _stay_alive(self) -> None:
        connection = self._open_connection()
        signs = SignsOfLife(self._loop.time(), self._keep_alive)
        while True:
            await asyncio.sleep(min(LOOK_EVERY_S, self._keep_alive.interval_s / 2))
            now = self._loop.time()
            signs.heard = max(signs.heard, connection.last_received)
            match signs.look(now, connection.transport.get_write_buffer_size(), is_listening=True):
                case KeepAliveAction.PING:
                    with suppress(ConnectionClosed):
                        await connection.ping()
                case KeepAliveAction.GIVE_UP:
                    self._abort(f"relay {self._url} gave no sign of life for {signs.silent_s(now):.1f} s")
                case KeepAliveAction.NOTHING:
                    pass

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """End the socket when one of its tasks has failed by a defect."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("socket to relay %s failed", self._url, exc_info=error)
            self._abort(f"relay {self._url}: {type(error).__name__}: {error}")

    def _open_connection(self) -> RelayConnection:
        if self._connection is None:
            raise EdgeError(f"relay {self._url} is not connected")
        return self._connection

    def _abort(self, reason: str) -> None:
        """Close now; every edge is lost."""
        if self.state is SessionState.CLOSED:
            return
        self._enter(SessionState.CLOSED)
        reason = self._parting_reason or reason
        self.closed.set_result(reason)
        self._is_idle.set()
        if self._connection is not None:
            self._connection.transport.abort()
        for link in tuple(self._links.values()):
            link.lost(reason)
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    def _enter(self, state: SessionState) -> None:
        self.state = self.state.to(state, f"session at relay {self._url}")
