"""The WebSocket client under a relay's socket: sends messages in masked pieces, receives each into memory of its own.

`relay.socket` opens one. The websockets library copies a message four times before it is sent and three times when it
is received, into new memory each time; an answer of megabytes would cost more there than in the kernel that computed
it. So whole binary messages bypass the library in both directions, and everything else is left to it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
from websockets.asyncio.client import ClientConnection
from websockets.frames import DATA_OPCODES, Frame
from websockets.protocol import Event, State

from kvasir.relay.reader import RelayReader
from kvasir.relay.records import MAX_MESSAGE_BYTES, message_head
from kvasir.wire.header import Buffer

PIECE_BYTES = 256 * 1024  # masked and written at once
HEAD_ROOM = 16  # at the start of a message's first piece, so that the masked bytes begin on a word
MAX_FRAGMENTS = 4096  # of one message


class RelayConnection(ClientConnection, asyncio.BufferedProtocol):
    """A client's connection that calls `on_message` with each message, and `on_lost` at the end.

    Neither may raise. `last_received` is when bytes last arrived: an incomplete message is a sign of life too.
    """

    def __init__(
        self, *args: Any, on_message: Callable[[Buffer], None], on_lost: Callable[[], None], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.last_received = 0.0
        self._on_message = on_message
        self._on_lost = on_lost
        self._fragments: list[bytes] = []
        self._is_mid_message = False
        self._reader = RelayReader(on_message, self.data_received, self._is_open, MAX_MESSAGE_BYTES)

    async def send_message(self, parts: Sequence[Buffer], n_bytes: int) -> None:
        """Send one binary message of `n_bytes`, whose parts must not change until it is sent. One call at a time.

        Raises ConnectionClosed.
        """
        if not self._is_open():
            async with self.send_context():
                pass  # it raises the right ConnectionClosed
        self._is_mid_message = True
        try:
            for piece in masked_message(parts, n_bytes, secrets.token_bytes(4)):
                self.transport.write(piece)
                if self.paused:
                    with suppress(OSError):  # the connection is lost then
                        await self.drain()
                if self.protocol.state is State.CLOSED:
                    raise self.close_exc
        finally:
            self._is_mid_message = False
        self.send_data()

    def _is_open(self) -> bool:
        return self.protocol.state is State.OPEN

    # Called by the library

    def send_data(self) -> None:
        """Send the library's own frames, but never within a message."""
        if not self._is_mid_message:
            super().send_data()

    def process_event(self, event: Event) -> None:
        """Gather a message in fragments; leave everything else to the library."""
        if not isinstance(event, Frame) or event.opcode not in DATA_OPCODES:
            super().process_event(event)
            return
        self._fragments.append(bytes(event.data))
        if event.fin:
            message, self._fragments = b"".join(self._fragments), []
            self._on_message(message)
        elif len(self._fragments) >= MAX_FRAGMENTS:
            self.transport.abort()

    # Called by the event loop

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes."""
        return self._reader.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that were received."""
        self.last_received = self.loop.time()
        self._reader.advance(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection, and report it."""
        super().connection_lost(exc)
        self._on_lost()


def masked_message(parts: Sequence[Buffer], n_bytes: int, mask: bytes) -> Iterator[memoryview]:
    """Yield a client's whole binary message (RFC 6455, section 5.2) in the fewest equal pieces up to PIECE_BYTES."""
    key = np.frombuffer(2 * mask, np.uint64)[0]
    head = message_head(n_bytes, is_masked=True) + mask
    n_pieces = -(-(HEAD_ROOM + n_bytes) // PIECE_BYTES)
    piece_bytes = -(-(HEAD_ROOM + n_bytes) // n_pieces // 8) * 8  # in whole words
    piece, n_filled = np.empty(piece_bytes, np.uint8), HEAD_ROOM
    start, first = HEAD_ROOM - len(head), HEAD_ROOM  # of the bytes to send, and of those to mask
    piece[start:first] = np.frombuffer(head, np.uint8)
    for part in parts:
        data = np.frombuffer(part, np.uint8)
        at = 0
        while at < len(data):
            n = min(piece_bytes - n_filled, len(data) - at)
            piece[n_filled : n_filled + n] = data[at : at + n]
            at, n_filled = at + n, n_filled + n
            if n_filled == piece_bytes:
                _mask(piece[first:], key)
                yield piece.data[start:]
                # new memory: the transport may still hold the last piece
                piece, n_filled, start, first = np.empty(piece_bytes, np.uint8), 0, 0, 0
    if n_filled > start:
        _mask(piece[first : -(-n_filled // 8) * 8], key)
        yield piece.data[start:n_filled]


def _mask(data: npt.NDArray[np.uint8], key: np.uint64) -> None:
    """Mask eight bytes at a time: masked data begins with the mask's first byte."""
    words = data.view(np.uint64)
    np.bitwise_xor(words, key, out=words)
