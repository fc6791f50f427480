"""The quick way for a client's binary messages: whole, unfragmented WebSocket frames, read without Autobahn.

`websocket_server` feeds it. Everything else (text, fragments, pings, closes, what is over the limit, what is against
the rules) it hands to Autobahn byte for byte. Large messages are received in place, and unmasked as they come.
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
    """Bytes in; messages to `on_message`, all other bytes to `hand_over`.

    `may_read` says whether Autobahn is between frames, so that the next byte begins one. While a large message is
    being gathered, its bytes may be written to `writable()` and told to `advance`, instead of being given to `feed`.
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
        """Where the next bytes of the stream may be written: not empty. None where only `feed` takes them."""
        return None if self._large is None else self._large.writable()

    def advance(self, n_bytes: int) -> None:
        """Take the `n_bytes` that were written to `writable()`."""
        large = self._large
        if large is not None and large.advance(n_bytes):
            self._large = None
            self._on_message(large.data)

    def _head(self, data: bytes) -> tuple[int, int]:
        """Bytes of the head and of the payload; (0, 0) for a frame that is not for the quick way."""
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
        """Put bytes into the message that is being gathered; returns those after its end."""
        space = large.writable()
        n_bytes = min(len(space), len(data))
        space[:n_bytes] = data if n_bytes == len(data) else data[:n_bytes]
        self.advance(n_bytes)
        return data[n_bytes:] if n_bytes < len(data) else b""


class LargeMessage:
    """A message that comes in several reads: its memory, of which a part is there and unmasked."""

    def __init__(self, n_bytes: int, mask: bytes) -> None:
        # whole words; pages are mapped when bytes come: who only promises bytes costs no memory
        self._memory = POOL.empty(-(-n_bytes // 8) * 8)
        self._words = self._memory.view(np.uint64)
        self._key = np.frombuffer(2 * mask, np.uint64)[0]
        self._filled = self._unmasked = 0  # bytes, and whole words
        self.data = self._memory.data[:n_bytes]

    def writable(self) -> memoryview:
        """Where its next bytes go."""
        return self.data[self._filled :]

    def advance(self, n_bytes: int) -> bool:
        """Count bytes that were written, and unmask them while they are in cache; whether all are there."""
        self._filled += n_bytes
        is_whole = self._filled == len(self.data)
        end = len(self._words) if is_whole else self._filled // 8
        words = self._words[self._unmasked : end]
        np.bitwise_xor(words, self._key, out=words)
        self._unmasked = end
        return is_whole
