"""The WebSocket client under a relay's socket: large messages leave in masked pieces, and any byte is a sign of life.

`relay_socket` opens one. The library that it stands on copies a message four times before it is sent, into memory
that is fresh each time; answers of megabytes cost more there than in the kernel that computed them.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from websockets.asyncio.client import ClientConnection
from websockets.protocol import State

from kvasir.wire_header import Buffer

PIECE_BYTES = 256 * 1024  # masked and written at once
SMALL_BYTES = 64 * 1024  # messages up to this size go the library's way
HEAD_BYTES = 14  # of a message above that
HEAD_ROOM = 16  # so that what is masked lies on words


class RelayConnection(ClientConnection):
    """Notes when bytes came: a large message is a sign of life before it is complete."""

    last_received = 0.0
    _is_mid_message = False

    def data_received(self, data: bytes) -> None:
        self.last_received = self.loop.time()
        super().data_received(data)

    def send_data(self) -> None:
        """As the library's, but nothing of its own leaves within a message."""
        if not self._is_mid_message:
            super().send_data()

    async def send_message(self, parts: Sequence[Buffer], n_bytes: int) -> None:
        """Send one binary message of `n_bytes`, whose parts must not change until then. One call at a time.

        Raises ConnectionClosed.
        """
        if n_bytes <= SMALL_BYTES:
            await self.send(b"".join(parts))
            return
        async with self.send_context():
            self._is_mid_message = True
            try:
                for piece in masked_message(parts, n_bytes, secrets.token_bytes(4)):
                    if self.protocol.state is State.CLOSED:
                        break
                    self.transport.write(piece)
                    await self.drain()
            finally:
                self._is_mid_message = False


def masked_message(parts: Sequence[Buffer], n_bytes: int, mask: bytes) -> Iterator[memoryview]:
    """A client's whole binary message of more than SMALL_BYTES (RFC 6455, section 5.2), in pieces of PIECE_BYTES."""
    key = np.frombuffer(2 * mask, np.uint64)[0]
    piece, n_filled = np.empty(PIECE_BYTES, np.uint8), HEAD_ROOM
    piece[HEAD_ROOM - HEAD_BYTES : HEAD_ROOM] = np.frombuffer(struct.pack("!BBQ", 0x82, 0xFF, n_bytes) + mask, np.uint8)
    start, first = HEAD_ROOM - HEAD_BYTES, HEAD_ROOM  # of what is sent, and of what is masked
    for part in parts:
        data = np.frombuffer(part, np.uint8)
        at = 0
        while at < len(data):
            n = min(PIECE_BYTES - n_filled, len(data) - at)
            piece[n_filled : n_filled + n] = data[at : at + n]
            at, n_filled = at + n, n_filled + n
            if n_filled == PIECE_BYTES:
                _mask(piece[first:], key)
                yield piece.data[start:]
                # another one: the transport may still hold the last
                piece, n_filled, start, first = np.empty(PIECE_BYTES, np.uint8), 0, 0, 0
    if n_filled:
        _mask(piece[first : -(-n_filled // 8) * 8], key)
        yield piece.data[start:n_filled]


def _mask(data: npt.NDArray[np.uint8], key: np.uint64) -> None:
    """Eight bytes at a time: pieces begin where the mask does."""
    words = data.view(np.uint64)
    np.bitwise_xor(words, key, out=words)
