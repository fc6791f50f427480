"""The WebSocket client under a relay's socket: messages leave in masked pieces and come in one piece of memory.

`relay.socket` opens one. The library that it stands on copies a message four times before it is sent and three times
when it comes, into memory that is fresh each time; answers of megabytes cost more there than in the kernel that
computed them. So whole binary messages go past it, both ways; everything else is the library's.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
from websockets.asyncio.client import ClientConnection
from websockets.frames import DATA_OPCODES, Frame
from websockets.protocol import Event, State

from kvasir.relay.reader import RelayReader
from kvasir.relay.records import MAX_MESSAGE_BYTES
from kvasir.wire.header import Buffer

PIECE_BYTES = 256 * 1024  # masked and written at once
HEAD_ROOM = 16  # of a piece that begins a message, so that what is masked lies on words
MAX_FRAGMENTS = 4096  # of one message


class RelayConnection(ClientConnection, asyncio.BufferedProtocol):
    """A client's connection that calls `on_message` with each message as it comes, and `on_lost` at the end.

    Neither may raise. `last_received` says when bytes came: a large message is a sign of life before it is complete.
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
        """Send one binary message of `n_bytes`, whose parts must not change until then. One call at a time.

        Raises ConnectionClosed.
        """
        if not self._is_open():
            async with self.send_context():
                pass  # it raises what is to be raised
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

    # What the library calls

    def send_data(self) -> None:
        """As the library's, but nothing of its own leaves within a message."""
        if not self._is_mid_message:
            super().send_data()

    def process_event(self, event: Event) -> None:
        """Gather a message that came the library's way; all else is the library's."""
        if not isinstance(event, Frame) or event.opcode not in DATA_OPCODES:
            super().process_event(event)
            return
        self._fragments.append(bytes(event.data))
        if event.fin:
            message, self._fragments = b"".join(self._fragments), []
            self._on_message(message)
        elif len(self._fragments) >= MAX_FRAGMENTS:
            self.transport.abort()

    # What the event loop calls

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._reader.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes."""
        self.last_received = self.loop.time()
        self._reader.advance(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Say that this was the end."""
        super().connection_lost(exc)
        self._on_lost()


def masked_message(parts: Sequence[Buffer], n_bytes: int, mask: bytes) -> Iterator[memoryview]:
    """A client's whole binary message (RFC 6455, section 5.2), in the fewest pieces up to PIECE_BYTES, all alike."""
    key = np.frombuffer(2 * mask, np.uint64)[0]
    head = masked_head(n_bytes) + mask
    n_pieces = -(-(HEAD_ROOM + n_bytes) // PIECE_BYTES)
    piece_bytes = -(-(HEAD_ROOM + n_bytes) // n_pieces // 8) * 8  # in whole words
    piece, n_filled = np.empty(piece_bytes, np.uint8), HEAD_ROOM
    start, first = HEAD_ROOM - len(head), HEAD_ROOM  # of what is sent, and of what is masked
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
                # another one: the transport may still hold the last
                piece, n_filled, start, first = np.empty(piece_bytes, np.uint8), 0, 0, 0
    if n_filled > start:
        _mask(piece[first : -(-n_filled // 8) * 8], key)
        yield piece.data[start:n_filled]


def masked_head(n_bytes: int) -> bytes:
    """What stands before the mask of a client's whole binary message."""
    if n_bytes < 126:
        return struct.pack("!BB", 0x82, 0x80 | n_bytes)
    if n_bytes < 65_536:
        return struct.pack("!BBH", 0x82, 0x80 | 126, n_bytes)
    return struct.pack("!BBQ", 0x82, 0x80 | 127, n_bytes)


def _mask(data: npt.NDArray[np.uint8], key: np.uint64) -> None:
    """Eight bytes at a time: pieces begin where the mask does."""
    words = data.view(np.uint64)
    np.bitwise_xor(words, key, out=words)
