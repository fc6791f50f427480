"""Daphne with bounded memory: back-pressure both ways, limits, reasons, and a sign of life from every socket.

`serving` runs it. Daphne alone buffers without bounds in both directions, drops sockets without a reason, and finds
a half-open socket late; this subclass hooks into its server and its WebSocket protocol and changes nothing else.
"""

from __future__ import annotations

# daphne installs Twisted's reactor over asyncio when it is imported: it must come first
from daphne.server import Server  # isort: skip
import asyncio
import logging
import struct
import time
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from daphne.ws_protocol import WebSocketProtocol
from twisted.internet import defer, reactor
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST

from kvasir.edge.signs_of_life import LOOK_EVERY_S, KeepAliveAction, SignsOfLife
from kvasir.wire.header import Buffer
from relay.server.frame_reader import FrameReader
from relay.server.http_responses import BoundedResponses
from relay.server.receive_queue import ReceiveQueue
from relay.server.write_gate import WriteGate

SEND_BUFFER_BYTES = 256 * 1024  # what may wait in a socket's transport before senders are held up
CLOSE_REASON_BYTES = 123  # what a WebSocket close frame has room for
UNANNOUNCED_MESSAGE_BYTES = 64 * 1024  # accepted from a socket until its application asks for more

log = logging.getLogger(__name__)


class RelayProtocol(WebSocketProtocol):  # type: ignore[misc]
    """One WebSocket. Besides Daphne's work it holds up senders and notices a silent other side."""

    gate: WriteGate | None = None
    reader: FrameReader | None = None
    close_reason = ""
    signs: SignsOfLife | None = None

    def onOpen(self) -> None:  # noqa: N802 (Autobahn's names)
        self.gate = WriteGate(self.transport, SEND_BUFFER_BYTES)
        self.reader = FrameReader(
            self._message_received, self._dataReceived, self._is_between_frames, self.maxMessagePayloadSize
        )
        self.signs = SignsOfLife(time.monotonic())
        self.transport.doRead = self._read
        super().onOpen()

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        if self.reader is not None and self.signs is not None:
            self.signs.heard = time.monotonic()
            self.reader.feed(data)
        else:
            super().dataReceived(data)

    def _read(self) -> Any:
        """In the transport's place: a large message's bytes go straight into its own memory."""
        space = self.reader.writable() if self.reader is not None else None
        if self.reader is None or self.signs is None or space is None:
            return type(self.transport).doRead(self.transport)
        try:
            n_bytes = self.transport.socket.recv_into(space)
        except BlockingIOError:
            return None
        except OSError:
            return CONNECTION_LOST
        if not n_bytes:
            return CONNECTION_DONE
        self.signs.heard = time.monotonic()
        self.reader.advance(n_bytes)
        return None

    def onMessage(self, payload: bytes, isBinary: bool) -> None:  # noqa: N802, N803
        if not self.muted:
            message = {"bytes": payload} if isBinary else {"text": payload.decode("utf8", "replace")}
            self.application_queue.put_nowait({"type": "websocket.receive", **message})

    def onClose(self, wasClean: bool, code: int, reason: str | None) -> None:  # noqa: N802, N803
        if self.gate is not None:
            self.gate.resumeProducing()
        if hasattr(self, "application_queue"):
            self.application_queue.closed_because = self.close_reason or reason or ""
        super().onClose(wasClean, code, reason)

    def accept_messages_up_to(self, n_bytes: int) -> None:
        """Take messages of this size from now on."""
        self.maxMessagePayloadSize = self.maxFramePayloadSize = n_bytes
        if self.reader is not None:
            self.reader.max_bytes = n_bytes

    def _message_received(self, payload: Buffer) -> None:
        if not self.muted:
            self.application_queue.put_nowait({"type": "websocket.receive", "bytes": payload})

    def _is_between_frames(self) -> bool:
        return bool(
            self.state == self.STATE_OPEN and not self.data and self.current_frame is None and not self.inside_message
        )

    async def send_bytes(self, data: Buffer) -> None:
        """Send one message and wait while the other side reads too slowly."""
        if self.state == self.STATE_OPEN and self.gate is not None:
            self.gate.write(binary_head(len(data)), data)
            await self.gate.passed()

    def check_timeouts(self) -> None:
        """Ping a silent socket, and drop one that stays silent. Called once per LOOK_EVERY_S."""
        if self.state == self.STATE_CONNECTING and self.duration() > self.server.websocket_connect_timeout:
            self.serverReject()
        if self.state != self.STATE_OPEN or self.gate is None or self.signs is None:
            return
        now = time.monotonic()
        match self.signs.look(now, self.gate.unsent_bytes(), not self.application_queue.is_paused):
            case KeepAliveAction.PING:
                self.sendPing(b"kvasir")
            case KeepAliveAction.GIVE_UP:
                self.close_reason = f"no sign of life for {self.signs.silent_s(now):.1f} s"
                self.dropConnection(abort=True)
            case KeepAliveAction.NOTHING:
                pass


class RelayServer(BoundedResponses, Server):  # type: ignore[misc]
    """Daphne's server with `RelayProtocol`. `on_stop` runs before the applications are cancelled."""

    def __init__(self, *args: Any, on_stop: Callable[[], Awaitable[None]], **options: Any) -> None:
        super().__init__(
            *args,
            websocket_timeout=-1,  # sockets live for weeks
            websocket_max_message_size=UNANNOUNCED_MESSAGE_BYTES,
            websocket_max_frame_size=UNANNOUNCED_MESSAGE_BYTES,
            **options,
        )
        self._on_stop = on_stop
        self.failure = ""

    def create_application(self, protocol: Any, scope: MutableMapping[str, Any]) -> Any:
        """As Daphne's, but a WebSocket's queue counts bytes and its scope can raise the message limit."""
        if scope["type"] != "websocket":
            return super().create_application(protocol, scope)
        queue = ReceiveQueue(protocol)
        scope["asgi"] = {"version": "3.0"}
        scope["extensions"] = {"kvasir.socket": {"accept_messages_up_to": protocol.accept_messages_up_to}}
        serving = self.application(scope=scope, receive=queue.get, send=partial(self.handle_reply, protocol))
        self.connections[protocol]["application_instance"] = asyncio.ensure_future(serving)
        return queue

    async def handle_reply(self, protocol: Any, message: MutableMapping[str, Any]) -> None:
        """As Daphne's, but binary messages wait for the other side, and a close carries its reason."""
        if message["type"] == "websocket.send" and message.get("bytes") is not None:
            await protocol.send_bytes(message["bytes"])
        elif message["type"] == "websocket.close" and protocol.state == protocol.STATE_OPEN:
            # not sendClose: that knows only codes of applications
            protocol.sendCloseFrame(message.get("code", 1000), _clipped_reason(message.get("reason") or ""))
        else:
            await super().handle_reply(protocol, message)

    def listen_success(self, port: Any) -> None:
        super().listen_success(port)
        # Daphne has made its factory by now, and no socket has been accepted yet
        self.ws_factory.protocol = RelayProtocol
        self.ws_factory.setProtocolOptions(failByDrop=False, autoPingTimeout=0, tcpNoDelay=True)

    def listen_error(self, failure: Any) -> None:
        self.failure = failure.getErrorMessage()
        super().listen_error(failure)

    def timeout_checker(self) -> None:
        for protocol in list(self.connections):
            protocol.check_timeouts()
        reactor.callLater(LOOK_EVERY_S, self.timeout_checker)  # type: ignore[arg-type]  # zope declares no self

    def kill_all_applications(self) -> Any:
        """Stop in order: what `on_stop` does first, then the applications. The reactor waits for it."""
        return defer.Deferred.fromFuture(asyncio.ensure_future(self._stop_in_order()))

    async def _stop_in_order(self) -> None:
        try:
            await self._on_stop()
        except Exception:  # the server's last act: log it, and stop all the same
            log.exception("stopping in order failed")
        running = [details.get("application_instance") for details in self.connections.values()]
        tasks = [task for task in running if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def binary_head(n_bytes: int) -> bytes:
    """What stands before `n_bytes` to make them a server's whole binary message (RFC 6455, section 5.2)."""
    if n_bytes < 126:
        return struct.pack("!BB", 0x82, n_bytes)
    if n_bytes < 65_536:
        return struct.pack("!BBH", 0x82, 126, n_bytes)
    return struct.pack("!BBQ", 0x82, 127, n_bytes)


def _clipped_reason(reason: str) -> bytes:
    return reason.encode()[:CLOSE_REASON_BYTES].decode("utf-8", "ignore").encode()
