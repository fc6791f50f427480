"""The fast path for a client's binary messages: whole, unfragmented WebSocket frames, read without Autobahn.

`websocket_server` feeds it. Everything else (text, fragments, pings, closes, frames over the limit or against the
rules) is handed to Autobahn byte for byte. Large messages are received in place, and unmasked as they arrive.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from kvasir.kernels.memory_pool import POOL
from kvasir.wire.header import Buffer

try:
    from websockets.speedups import apply_mask

    HAS_FAST_UNMASKING = True
except ImportError:  # a platform without the C code
    from websockets.utils import apply_mask

    HAS_FAST_UNMASKING = False

BINARY_FINAL = 0x82
MASKED = 0x80
SHORT_HEAD, MEDIUM_HEAD, LONG_HEAD = 6, 8, 14  # with the mask
_MEDIUM = struct.Struct("!H")
_LONG = struct.Struct("!Q")


class FrameReader:
    """Passes messages to `on_message` and all other bytes to `hand_over`.

    `may_read` returns whether Autobahn is between frames, so that the next byte begins one. While a large message is
    being received, write its bytes to `writable()` and report their number to `advance`, instead of calling `feed`.
    """

    def __init__(
        self,
        on_message: Callable[[Buffer], None],
        hand_over: Callable[[bytes], None],
        may_read: Callable[[], bool],
        max_bytes: int,
    ) -> None:
        self._on_message = on_message
        self._hand_over = hand_over
        self._may_read = may_read
        self.max_bytes = max_bytes
        self._large: LargeMessage | None = None

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        if self._large is not None:
            data = self._fill(self._large, data)
        while data:
            if not self._may_read():
                self._hand_over(data)
                return
            head_bytes, length = self._head(data)
            if not head_bytes:
                self._hand_over(data)
                return
            mask, end = data[head_bytes - 4 : head_bytes], head_bytes + length
            if end > len(data):
                self._large = LargeMessage(length, mask)
                self._fill(self._large, data[head_bytes:])
                return
            self._on_message(apply_mask(data[head_bytes:end], mask))
            data = data[end:] if end < len(data) else b""

    def writable(self) -> memoryview | None:
        """Return the memory for the next bytes of a large message, never empty; None when only `feed` takes them."""
        return None if self._large is None else self._large.writable()

    def advance(self, n_bytes: int) -> None:
        """Take the `n_bytes` that were written to `writable()`."""
        large = self._large
        if large is not None and large.advance(n_bytes):
            self._large = None
            self._on_message(large.data)

    def _head(self, data: bytes) -> tuple[int, int]:
        """Return the bytes of the head and of the payload; (0, 0) for a frame that is not for the fast path."""
        n_bytes = len(data)
        if n_bytes < SHORT_HEAD or data[0] != BINARY_FINAL or not data[1] & MASKED:
            return 0, 0
        head_bytes, length = SHORT_HEAD, data[1] & 0x7F
        if length == 126:
            if n_bytes < MEDIUM_HEAD:
                return 0, 0
            head_bytes, (length,) = MEDIUM_HEAD, _MEDIUM.unpack_from(data, 2)
            is_canonical = length >= 126
        elif length == 127:
            if n_bytes < LONG_HEAD:
                return 0, 0
            head_bytes, (length,) = LONG_HEAD, _LONG.unpack_from(data, 2)
            is_canonical = length >= 65_536
        else:
            is_canonical = True
        return (head_bytes, length) if is_canonical and length <= self.max_bytes else (0, 0)

    def _fill(self, large: LargeMessage, data: bytes) -> bytes:
        """Copy bytes into the message that is being received. Return those after its end."""
        space = large.writable()
        n_bytes = min(len(space), len(data))
        space[:n_bytes] = data if n_bytes == len(data) else data[:n_bytes]
        self.advance(n_bytes)
        return data[n_bytes:] if n_bytes < len(data) else b""


class LargeMessage:
    """The memory of a message that takes several reads; the part that has arrived is unmasked."""

    def __init__(self, n_bytes: int, mask: bytes) -> None:
        # in whole words; pages are mapped when they are written: bytes that are only announced cost no memory
        self._memory = POOL.empty(-(-n_bytes // 8) * 8)
        self._words = self._memory.view(np.uint64)
        self._key = np.frombuffer(2 * mask, np.uint64)[0]
        self._filled = self._unmasked = 0  # bytes received, words unmasked
        self.data = self._memory.data[:n_bytes]

    def writable(self) -> memoryview:
        """Return the memory for its next bytes."""
        return self.data[self._filled :]

    def advance(self, n_bytes: int) -> bool:
        """Count received bytes and unmask them while they are in cache. Return whether the message is complete."""
        self._filled += n_bytes
        is_whole = self._filled == len(self.data)
        end = len(self._words) if is_whole else self._filled // 8
        words = self._words[self._unmasked : end]
        np.bitwise_xor(words, self._key, out=words)
        self._unmasked = end
        return is_whole
