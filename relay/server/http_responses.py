"""Daphne's HTTP answers with bounded memory, and files sent by the operating system.

`websocket_server` mixes this into its server. Daphne itself takes every piece of an answer at once, however slowly the
client reads. Here the application has to wait before the next piece while many bytes wait; and ASGI's `zerocopysend`
extension is offered: a thread sends bytes of an open file by sendfile, so that neither copies nor waits for a disk
delay the event loop, which serves the relay's frames.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from twisted.web import http

WAITING_BYTES = 256 * 1024  # in a client's transport, before the application has to wait
ZERO_COPY = "http.response.zerocopysend"
DROP = "kvasir.response.drop"  # a message: end the connection short of the answer's length
SENDFILE_BYTES = 4 << 20  # for one call
MAX_SENDERS = 64  # threads; further files wait
LOOK_EVERY_MS = 500  # at whether a client that does not read is still connected
STALL_S = 60.0  # a client that takes no byte for this long is dropped


class BoundedResponses:
    """Mixed into Daphne's Server, before it."""

    connections: dict[Any, dict[str, Any]]

    def protocol_connected(self, protocol: Any) -> None:
        """Extend Daphne's: keep Twisted from parsing forms, which is slow and unbounded. Django parses them."""
        if isinstance(protocol, http.Request):
            protocol._parsePOSTFormSubmission = False
        super().protocol_connected(protocol)  # type: ignore[misc]

    def create_application(self, protocol: Any, scope: MutableMapping[str, Any]) -> Any:
        """Extend Daphne's: offer the extensions for HTTP requests."""
        if scope["type"] == "http":
            extensions = scope.setdefault("extensions", {})
            extensions[DROP] = {}
            if hasattr(os, "sendfile") and not protocol.isSecure():
                extensions[ZERO_COPY] = {}
        return super().create_application(protocol, scope)  # type: ignore[misc]

    async def handle_reply(self, protocol: Any, message: MutableMapping[str, Any]) -> None:
        """Extend Daphne's: return from a piece of an HTTP answer when the next may be sent."""
        kind = message["type"]
        if kind not in ("http.response.body", ZERO_COPY, DROP):
            await super().handle_reply(protocol, message)  # type: ignore[misc]
            return
        details = self.connections.get(protocol)
        if details is None or details.get("disconnected"):
            return
        gate: ResponseGate | None = details.get("gate")
        if gate is None and (kind != "http.response.body" or message.get("more_body")):
            gate = details["gate"] = ResponseGate(protocol)
        if gate is not None and gate.gone.is_set():
            return
        if gate is not None and kind == DROP:
            gate.drop()
            return
        if gate is not None and kind == ZERO_COPY:
            await _zero_copy(protocol, gate, message)
            return
        is_last = not message.get("more_body")
        if gate is not None and is_last:
            gate.close()  # the request ends with this piece, and must then have no producer
        await super().handle_reply(protocol, message)  # type: ignore[misc]
        if gate is not None and not is_last:
            await gate.passed()


class ResponseGate:
    """The producer of one answer, which Twisted calls when the client is slow or gone."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._transport = request.channel.transport if request.channel is not None else None
        self._opening: asyncio.Future[None] | None = None
        self.gone = threading.Event()
        if self._transport is None:
            self.gone.set()
            return
        self._transport.bufferSize = WAITING_BYTES
        request.registerProducer(self, True)

    async def passed(self) -> None:
        """Wait until the transport has room, or the client has left."""
        while self._opening is not None and not self.gone.is_set():
            await asyncio.shield(self._opening)

    async def emptied(self) -> None:
        """Wait until all that was written has been given to the operating system."""
        transport = self._transport
        if transport is None:
            return
        transport.bufferSize = 0
        try:
            # the head of the answer, if it has not been sent yet
            http.Request.write(self._request, b"")  # type: ignore[no-untyped-call]
            if self._opening is None and len(transport.dataBuffer) - transport.offset + transport._tempDataLen:
                transport._maybePauseProducer()  # fewer bytes than the old limit
            await self.passed()
        finally:
            transport.bufferSize = WAITING_BYTES

    def descriptor(self) -> int:
        """Return a new file descriptor of the client's socket. Raises OSError when it is closed."""
        if self._transport is None or self.gone.is_set():
            raise OSError("the client has left")
        return os.dup(self._transport.fileno())

    def drop(self) -> None:
        """End the connection before the end of the answer, so that the client notices that bytes are missing."""
        if self._transport is not None and not self.gone.is_set():
            self.stopProducing()  # later bytes of the answer must not follow the missing ones
            self._transport.loseConnection()

    def close(self) -> None:
        """Unregister the producer: the answer ends."""
        if self._request.producer is self and self._request.channel is not None:
            self._request.unregisterProducer()

    # Called by the channel, under Twisted's names

    def pauseProducing(self) -> None:  # noqa: N802
        """Close the gate: more bytes than the limit wait."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()

    def resumeProducing(self) -> None:  # noqa: N802
        """Open the gate: no bytes wait."""
        opening, self._opening = self._opening, None
        if opening is not None and not opening.done():
            opening.set_result(None)

    def stopProducing(self) -> None:  # noqa: N802
        """Note that the client has left."""
        self.gone.set()
        self.resumeProducing()


_senders = ThreadPoolExecutor(MAX_SENDERS, thread_name_prefix="sendfile")


async def _zero_copy(request: Any, gate: ResponseGate, message: MutableMapping[str, Any]) -> None:
    """Send `count` bytes at `offset` of an open file, or drop the client."""
    await gate.emptied()
    if request.chunked:
        raise ValueError(f"{ZERO_COPY} needs a Content-Length: this answer is sent in chunks")
    if not gate.gone.is_set():
        count = message["count"]
        try:
            client = gate.descriptor()
        except OSError:
            return
        sending = asyncio.get_running_loop().run_in_executor(
            _senders, _send, client, message["file"], message["offset"], count, gate.gone
        )
        try:
            n_sent = await asyncio.shield(sending)
        except asyncio.CancelledError:
            gate.gone.set()  # the thread stops at its next look; the file must stay open until then
            await asyncio.wait([sending])
            raise
        request.sentLength += n_sent
        if n_sent < count:
            gate.drop()
    if not message.get("more_body"):
        gate.close()
        if not gate.gone.is_set():
            request.finish()


def _send(client: int, file: int, offset: int, count: int, gone: threading.Event) -> int:
    """Send, and return the bytes that the operating system took. Runs in a thread; closes `client`, not `file`."""
    poll = select.poll()
    poll.register(client, select.POLLOUT)
    n_sent = 0
    silent_ms = 0
    try:
        while n_sent < count and not gone.is_set() and silent_ms < STALL_S * 1000:
            try:
                n_taken = os.sendfile(client, file, offset + n_sent, min(SENDFILE_BYTES, count - n_sent))
            except BlockingIOError:
                silent_ms = 0 if poll.poll(LOOK_EVERY_MS) else silent_ms + LOOK_EVERY_MS
                continue
            if n_taken == 0:
                break  # the file ended early
            n_sent += n_taken
    except OSError:
        pass  # the client has left, or the file cannot be read: bytes are missing in both cases
    finally:
        os.close(client)
    return n_sent
