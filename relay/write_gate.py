"""A socket's way out: sends at once what the kernel takes, and holds up senders while more than a limit waits.

`websocket_server` registers one per WebSocket as the producer that Twisted pauses and resumes.
"""

from __future__ import annotations

import asyncio
from typing import Any

SMALL_BYTES = 64 * 1024


class WriteGate:
    """Open until the transport says that its buffer is full; open again when it has been emptied."""

    def __init__(self, transport: Any, limit_bytes: int) -> None:
        self._transport = transport
        self._opening: asyncio.Future[None] | None = None
        transport.unregisterProducer()  # the HTTP channel that the socket began as
        transport.bufferSize = limit_bytes
        transport.registerProducer(self, True)

    async def passed(self) -> None:
        """Wait until the gate is open."""
        while self._opening is not None:
            await asyncio.shield(self._opening)

    def write(self, head: bytes, data: bytes) -> None:
        """Send now when nothing waits and it is small; leave to the transport what the kernel does not take.

        The transport alone would wait for the socket to become writable each time: two system calls a message more.
        """
        transport = self._transport
        if len(data) > SMALL_BYTES:
            transport.writeSequence([head, data])
            return
        message = head + data
        if self.unsent_bytes() == 0 and transport.connected and not transport.disconnecting:
            n_sent = transport.writeSomeData(message)
            if isinstance(n_sent, int) and n_sent > 0:
                if n_sent < len(message):
                    transport.write(message[n_sent:])
                return
        transport.write(message)  # after an error, too: the reactor will meet it again and end the socket

    def unsent_bytes(self) -> int:
        """Bytes that wait in the transport. Its names are private: requirements.txt pins Twisted."""
        transport = self._transport
        return int(len(transport.dataBuffer) - transport.offset + transport._tempDataLen)

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
        self.resumeProducing()
