"""The relay's ASGI application: one coroutine for each socket, from its first message to its last.

Mounted at /relay beside Django. It checks the opening within a deadline, joins the session to the hub and hands over
its messages. It is not a Channels consumer, which would take several times the CPU for each message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from kvasir import __version__
from kvasir.errors import WireError, WireVersionError
from kvasir.relay.records import MAX_MESSAGE_BYTES, RELAY_EDGE, read_opening, record, relay_welcome
from kvasir.wire.frames import Hello, Refuse, RefuseCode, Role, clipped
from kvasir.wire.header import Buffer
from market.nodes.tokens import TokenHolder, TokenRefusedError, TokenScope
from relay.sockets.bridge import Session
from relay.sockets.hub import POLICY_VIOLATION, Hub
from relay.sockets.outbox import Outbox

HELLO_DEADLINE_S = 5.0
MAX_STRANGERS = 256  # sockets that have not shown a token
SCOPES = {Role.BACKBONE: TokenScope.BACKBONE, Role.WORKER: TokenScope.WORKER}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
CheckToken = Callable[[str, TokenScope], Awaitable[TokenHolder]]

log = logging.getLogger(__name__)


class SocketGoneError(Exception):
    """The socket is closed, by the other side or by a lost connection."""


class _RefusedError(Exception):
    """This socket is refused."""

    def __init__(self, code: RefuseCode, message: str) -> None:
        super().__init__(message)
        self.refusal = Refuse(code, message)


class RelayApplication:
    """Serves /relay. One for each process."""

    def __init__(self, hub: Hub, check_token: CheckToken, *, hello_deadline_s: float = HELLO_DEADLINE_S) -> None:
        self.hub = hub
        self._check_token = check_token
        self._hello_deadline_s = hello_deadline_s
        self._n_strangers = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one socket until it is closed."""
        if scope["type"] != "websocket":
            raise ValueError(f"the relay serves WebSockets, not {scope['type']!r}")
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        socket = _Socket(scope, receive, send)
        try:
            session = await self._welcome(socket)
            if session is not None:
                await self._serve(session, socket)
        except SocketGoneError:
            log.debug("a socket closed before its hello")

    async def _welcome(self, socket: _Socket) -> Session | None:
        """Return the session of a socket whose opening is accepted; close any other socket with the reason."""
        self._n_strangers += 1
        try:
            if self._n_strangers > MAX_STRANGERS:
                raise _RefusedError(RefuseCode.FULL, f"{MAX_STRANGERS} sockets have yet to say hello")
            async with asyncio.timeout(self._hello_deadline_s):
                hello = read_opening(await socket.receive_bytes())
                holder = await self._check_token(hello.token, SCOPES[hello.role])
            return self._joining(socket, hello, holder)
        except TimeoutError:
            refusal = Refuse(RefuseCode.DEADLINE, f"no hello within {self._hello_deadline_s:g} s")
        except WireVersionError as error:
            refusal = Refuse(RefuseCode.VERSION, clipped(str(error)))
        except WireError as error:
            refusal = Refuse(RefuseCode.MALFORMED, clipped(str(error)))
        except TokenRefusedError as error:
            refusal = Refuse(RefuseCode.TOKEN, clipped(str(error)))
        except _RefusedError as error:
            refusal = error.refusal
        finally:
            self._n_strangers -= 1
        await socket.refuse(refusal)
        return None

    def _joining(self, socket: _Socket, hello: Hello, holder: TokenHolder) -> Session:
        outbox = Outbox(socket.send_bytes, asyncio.get_running_loop().time)
        who = f"{hello.role.name.lower()} {holder.name!r} ({holder.public_id})"
        session = Session(hello, holder.public_id, who, outbox, socket.close)
        refusal = self.hub.refusal(session)
        if refusal is not None:
            raise _RefusedError(refusal.code, refusal.message)
        socket.accept_large_messages()
        name = f"kvasir-relay {__version__} {self.hub.relay_id}"
        session.send(RELAY_EDGE, relay_welcome(hello, name, self.hub.limits.credit_bytes))
        return session

    async def _serve(self, session: Session, socket: _Socket) -> None:
        sender = asyncio.get_running_loop().create_task(session.outbox.run())
        log.info("%s joined", session.name)
        self.hub.join(session)
        reason = "the relay stopped"
        try:
            while True:
                await self._take(session, socket)
        except SocketGoneError as error:
            reason = session.close_reason or str(error)
        finally:
            self.hub.leave(session, reason)
            sender.cancel()
            log.info("%s left: %s", session.name, reason)
            if session.closing is not None:
                await asyncio.gather(session.closing, return_exceptions=True)

    async def _take(self, session: Session, socket: _Socket) -> None:
        """Route the next message; close the session when it is malformed. Raises SocketGoneError."""
        try:
            message = await socket.receive_bytes()
            if session.is_open:
                await self.hub.route(session, message)
        except WireError as error:
            self.hub.dismiss(session, Refuse(RefuseCode.MALFORMED, clipped(str(error))))


class _Socket:
    """The messages of one accepted socket, without ASGI's envelopes."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._controls = scope.get("extensions", {}).get("kvasir.socket", {})

    async def receive_bytes(self) -> Buffer:
        """Return the next message. Raises SocketGoneError at the end, WireError for a text message."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            code, reason = message.get("code", 1006), message.get("reason") or ""
            raise SocketGoneError(f"socket closed ({code}{': ' if reason else ''}{reason})")
        data: Buffer | None = message.get("bytes")
        if data is None:
            raise WireError("a text message: frames travel as binary messages")
        return data

    async def send_bytes(self, data: Buffer) -> None:
        """Send one message. Returns when the socket can take the next."""
        await self._send({"type": "websocket.send", "bytes": data})

    async def close(self, code: int, reason: str) -> None:
        """Close with a code and a reason."""
        await self._send({"type": "websocket.close", "code": code, "reason": reason})

    async def refuse(self, refusal: Refuse) -> None:
        """Send the refusal, and close."""
        log.info("refused (%s): %s", refusal.code.name, refusal.message)
        await self.send_bytes(record(RELAY_EDGE, refusal))
        await self.close(POLICY_VIOLATION, refusal.message)

    def accept_large_messages(self) -> None:
        """Have the server accept messages of full size from now on."""
        accept = self._controls.get("accept_messages_up_to")
        if accept is not None:
            accept(MAX_MESSAGE_BYTES)
