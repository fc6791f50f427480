"""Daphne with bounded memory: back-pressure in both directions, limits, close reasons and signs of life.

`relay.server.daphne` runs it. Daphne itself buffers without bounds in both directions, drops sockets without a reason
and notices half-open ones late. These subclasses of its server and its WebSocket protocol change nothing else.
"""

from __future__ import annotations

# importing daphne installs Twisted's reactor over asyncio: it must come first
from daphne.server import Server  # isort: skip
import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from daphne.ws_protocol import WebSocketProtocol
from twisted.internet import defer, reactor
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST

from kvasir.edge.signs_of_life import LOOK_EVERY_S, KeepAliveAction, SignsOfLife
from kvasir.relay.records import message_head
from kvasir.wire.header import Buffer
from relay.server.frame_reader import FrameReader
from relay.server.http_responses import BoundedResponses
from relay.server.write_gate import WriteGate

RECEIVE_HIGH_BYTES = 1024 * 1024  # of messages that an application has not taken: above, nothing more is read
RECEIVE_LOW_BYTES = RECEIVE_HIGH_BYTES // 2  # reading resumes
SEND_BUFFER_BYTES = 256 * 1024  # in a socket's transport, before senders have to wait
CLOSE_REASON_BYTES = 123  # the room of a WebSocket close frame
UNANNOUNCED_MESSAGE_BYTES = 64 * 1024  # accepted from a socket until its application asks for more

Message = MutableMapping[str, Any]

log = logging.getLogger(__name__)


class ReceiveQueue(asyncio.Queue[Message]):
    """A WebSocket's ASGI messages that its application has not taken, counted in bytes; Daphne's queue has no bound.

    Over the high-water mark it stops reading from the socket. A single message of any size is always taken.
    """

    def __init__(self, protocol: WebSocketProtocol) -> None:
        super().__init__()
        self._protocol = protocol
        self.n_bytes = 0
        self.is_paused = False
        self.closed_because = ""  # added to the disconnect message, which Daphne makes without a reason

    def _put(self, item: Message) -> None:
        if item["type"] == "websocket.disconnect":
            item["reason"] = self.closed_because
        super()._put(item)
        self.n_bytes += _size(item)
        if self.n_bytes > RECEIVE_HIGH_BYTES and not self.is_paused and self._protocol.transport is not None:
            self.is_paused = True
            self._protocol.transport.pauseProducing()

    def _get(self) -> Message:
        item = super()._get()
        self.n_bytes -= _size(item)
        if self.is_paused and self.n_bytes <= RECEIVE_LOW_BYTES:
            self.is_paused = False
            transport = self._protocol.transport
            if transport is not None and transport.connected and not transport.disconnecting:
                transport.resumeProducing()
        return item


class RelayProtocol(WebSocketProtocol):  # type: ignore[misc]
    """One WebSocket: Daphne's, with back-pressure on senders and a keep-alive."""

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
        """Read in the transport's place, a large message straight into its own memory."""
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
        """Accept messages up to this size from now on."""
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
        """Send one message, and wait while the other side reads too slowly."""
        if self.state == self.STATE_OPEN and self.gate is not None:
            self.gate.write(message_head(len(data)), data)
            await self.gate.passed()

    def check_timeouts(self) -> None:
        """Ping a silent socket, and drop one that stays silent. Called every LOOK_EVERY_S seconds."""
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

    def create_application(self, protocol: Any, scope: Message) -> Any:
        """Extend Daphne's: a WebSocket's queue counts bytes, and its scope can raise the message limit."""
        if scope["type"] != "websocket":
            return super().create_application(protocol, scope)
        queue = ReceiveQueue(protocol)
        scope["asgi"] = {"version": "3.0"}
        scope["extensions"] = {"kvasir.socket": {"accept_messages_up_to": protocol.accept_messages_up_to}}
        serving = self.application(scope=scope, receive=queue.get, send=partial(self.handle_reply, protocol))
        self.connections[protocol]["application_instance"] = asyncio.ensure_future(serving)
        return queue

    async def handle_reply(self, protocol: Any, message: Message) -> None:
        """Extend Daphne's: binary messages wait for the other side, and a close has a reason."""
        if message["type"] == "websocket.send" and message.get("bytes") is not None:
            await protocol.send_bytes(message["bytes"])
        elif message["type"] == "websocket.close" and protocol.state == protocol.STATE_OPEN:
            # not sendClose, which takes only the codes of applications
            protocol.sendCloseFrame(message.get("code", 1000), _clipped_reason(message.get("reason") or ""))
        else:
            await super().handle_reply(protocol, message)

    def listen_success(self, port: Any) -> None:
        super().listen_success(port)
        # Daphne has made its factory, and no socket has been accepted yet
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
        """Run `on_stop`, then cancel the applications. The reactor waits for the result."""
        return defer.Deferred.fromFuture(asyncio.ensure_future(self._stop_in_order()))

    async def _stop_in_order(self) -> None:
        try:
            await self._on_stop()
        except Exception:  # it must not keep the server from stopping
            log.exception("stopping in order failed")
        running = [details.get("application_instance") for details in self.connections.values()]
        tasks = [task for task in running if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _size(item: Message) -> int:
    return len(item.get("bytes") or item.get("text") or b"")


def _clipped_reason(reason: str) -> bytes:
    return reason.encode()[:CLOSE_REASON_BYTES].decode("utf-8", "ignore").encode()
