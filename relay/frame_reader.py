"""The quick way for a client's binary messages: whole, unfragmented WebSocket frames, read without Autobahn.

`websocket_server` feeds it. Everything else (text, fragments, pings, closes, what is over the limit, what is against
the rules) it hands to Autobahn byte for byte. Large messages are gathered in place and unmasked once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

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

    `may_read` says whether Autobahn is between frames, so that the next byte begins one.
    """

    def __init__(
        self,
        on_message: Callable[[bytes], None],
        hand_over: Callable[[bytes], None],
        may_read: Callable[[], bool],
        max_bytes: int,
    ) -> None:
        self._on_message = on_message
        self._hand_over = hand_over
        self._may_read = may_read
        self.max_bytes = max_bytes
        self._mask = b""
        self._large: bytearray | None = None
        self._filled = 0

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
                self._begin_large(mask, length, data, head_bytes)
                return
            self._on_message(apply_mask(data[head_bytes:end], mask))
            data = data[end:] if end < len(data) else b""

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

    def _begin_large(self, mask: bytes, length: int, data: bytes, start: int) -> None:
        self._mask, self._large = mask, bytearray(length)
        self._filled = len(data) - start
        self._large[: self._filled] = memoryview(data)[start:]

    def _fill(self, large: bytearray, data: bytes) -> bytes:
        """Put bytes into the message that is being gathered; returns those after its end."""
        n_bytes = min(len(large) - self._filled, len(data))
        large[self._filled : self._filled + n_bytes] = data if n_bytes == len(data) else data[:n_bytes]
        self._filled += n_bytes
        if self._filled == len(large):
            self._large = None
            self._on_message(apply_mask(large, self._mask))
        return data[n_bytes:] if n_bytes < len(data) else b""
