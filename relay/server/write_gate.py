"""The sending side of a socket: sends at once what the kernel takes, and makes senders wait above a limit.

`websocket_server` registers one for each WebSocket as the producer that Twisted pauses and resumes. Large messages are
sent from the memory in which they were received; the transport would copy each one and send it in small parts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from twisted.internet.main import CONNECTION_LOST

from kvasir.wire.header import Buffer

SMALL_BYTES = 64 * 1024


class WriteGate:
    """Closed while the transport's buffer is full or a large message waits, until all has been sent; open otherwise."""

    def __init__(self, transport: Any, limit_bytes: int) -> None:
        self._transport = transport
        self._opening: asyncio.Future[None] | None = None
        self._large: deque[memoryview] = deque()  # the rest of one large message, which is sent first
        self._write_the_rest = transport.doWrite
        transport.doWrite = self._do_write
        transport.unregisterProducer()  # the HTTP channel that the socket began as
        transport.bufferSize = limit_bytes
        transport.registerProducer(self, True)

    async def passed(self) -> None:
        """Wait until the gate is open."""
        while self._opening is not None:
            await asyncio.shield(self._opening)

    def write(self, head: bytes, data: Buffer) -> None:
        """Send at once if nothing waits; the transport sends what the kernel does not take. `data` must not change.

        The transport would first wait for the socket to become writable: two more system calls for each message.
        """
        transport = self._transport
        is_free = self.unsent_bytes() == 0 and transport.connected and not transport.disconnecting
        if len(data) > SMALL_BYTES:
            if is_free:
                self._send_large(head, data)
            else:
                transport.writeSequence([head, bytes(data)])
            return
        message = b"".join((head, data))
        if is_free:
            n_sent = transport.writeSomeData(message)
            if isinstance(n_sent, int) and n_sent > 0:
                if n_sent < len(message):
                    transport.write(message[n_sent:])
                return
        transport.write(message)  # after an error too: the reactor gets the same error and closes the socket

    def unsent_bytes(self) -> int:
        """Return the bytes that wait in the transport. It reads private names: requirements.txt pins Twisted."""
        transport = self._transport
        waiting = len(transport.dataBuffer) - transport.offset + transport._tempDataLen
        return int(waiting) + sum(map(len, self._large))

    def _send_large(self, head: bytes, data: Buffer) -> None:
        """Send as much as the kernel takes, and the rest when it takes more, before all later messages."""
        view = memoryview(data)
        self._large.extend((memoryview(head + view[:SMALL_BYTES]), view[SMALL_BYTES:]))
        self._send_some()
        if self._large:  # after an error too, as above
            self.pauseProducing()
            self._transport.producerPaused = True  # as the transport sets it when it calls pauseProducing
            self._transport.startWriting()

    def _send_some(self) -> Any:
        """Send what the kernel takes of the large message. Return an error when the connection is lost."""
        while self._large:
            view = self._large[0]
            try:
                n_sent = self._transport.socket.send(view)
            except BlockingIOError:
                return None
            except OSError:
                return CONNECTION_LOST
            if n_sent == len(view):
                self._large.popleft()
            else:
                self._large[0] = view[n_sent:]
        return None

    def _do_write(self) -> Any:
        """Send more: the socket is writable."""
        failure = self._send_some()
        return failure if failure or self._large else self._write_the_rest()

    # Called by the transport, under Twisted's names

    def pauseProducing(self) -> None:  # noqa: N802
        """Close the gate: the buffer is over its limit."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()

    def resumeProducing(self) -> None:  # noqa: N802
        """Open the gate: the buffer is empty."""
        opening, self._opening = self._opening, None
        if opening is not None and not opening.done():
            opening.set_result(None)
        if self._transport.disconnecting:
            self._transport.unregisterProducer()  # else the transport would wait for its producer for ever

    def stopProducing(self) -> None:  # noqa: N802
        """Drop what waits: the transport is gone."""
        self._large.clear()
        self.resumeProducing()
