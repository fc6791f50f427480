"""A socket's way out: sends at once what the kernel takes, and holds up senders while more than a limit waits.

`websocket_server` registers one per WebSocket as the producer that Twisted pauses and resumes. Large messages are sent
from the memory that they came in; the transport alone would copy each before it goes, and offer it in small parts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from twisted.internet.main import CONNECTION_LOST

from kvasir.wire.header import Buffer

SMALL_BYTES = 64 * 1024


class WriteGate:
    """Open until the transport says that its buffer is full, or a large message waits; then open when all has left."""

    def __init__(self, transport: Any, limit_bytes: int) -> None:
        self._transport = transport
        self._opening: asyncio.Future[None] | None = None
        self._large: deque[memoryview] = deque()  # of one large message, what the kernel has not taken; goes first
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
        """Send now when nothing waits; leave to the transport what the kernel does not take. `data` must not change.

        The transport alone would wait for the socket to become writable each time: two system calls a message more.
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
        transport.write(message)  # after an error, too: the reactor will meet it again and end the socket

    def unsent_bytes(self) -> int:
        """Bytes that wait in the transport. Its names are private: requirements.txt pins Twisted."""
        transport = self._transport
        waiting = len(transport.dataBuffer) - transport.offset + transport._tempDataLen
        return int(waiting) + sum(map(len, self._large))

    def _send_large(self, head: bytes, data: Buffer) -> None:
        """Send as much as the kernel takes; the rest when it takes more, before anything that comes later."""
        view = memoryview(data)
        self._large.extend((memoryview(head + view[:SMALL_BYTES]), view[SMALL_BYTES:]))
        self._send_some()
        if self._large:  # after an error, too, as above
            self.pauseProducing()
            self._transport.producerPaused = True  # as the transport notes it that has called pauseProducing
            self._transport.startWriting()

    def _send_some(self) -> Any:
        """Give the kernel what it takes of the large message; an error when the connection is lost."""
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
        """The reactor says that the kernel takes more."""
        failure = self._send_some()
        return failure if failure or self._large else self._write_the_rest()

    # Twisted's names, called by the transport

    def pauseProducing(self) -> None:  # noqa: N802
        """The buffer is over its limit."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()

    def resumeProducing(self) -> None:  # noqa: N802
        """The buffer is empty."""
        opening, self._opening = self._opening, None
        if opening is not None and not opening.done():
            opening.set_result(None)
        if self._transport.disconnecting:
            self._transport.unregisterProducer()  # the transport would wait for its producer for ever

    def stopProducing(self) -> None:  # noqa: N802
        """The transport is gone."""
        self._large.clear()
        self.resumeProducing()
