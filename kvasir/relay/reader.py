"""Receives whole binary WebSocket messages from a relay straight into memory of their own.

`relay.connection` gives it the socket's bytes. Everything else (the opening handshake, text, fragments, pings, closes,
frames over the limit or against the rules) is handed to the WebSocket library byte for byte, without a judgement.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from kvasir.kernels.memory_pool import POOL

STAGING_BYTES = 64 * 1024
BINARY_FINAL = 0x82
FINAL, OPCODE, CONTROL, RESERVED = 0x80, 0x0F, 0x08, 0x70
CLOSE = 0x08
MASKED = 0x80
END_OF_HANDSHAKE = b"\r\n\r\n"  # a server's 101 has no body
_MEDIUM = struct.Struct("!H")
_LONG = struct.Struct("!Q")


class _Head(NamedTuple):
    """The head of one frame from a server."""

    first: int  # final flag, reserved bits, opcode
    n_bytes: int  # of the head itself
    length: int  # of the payload
    is_plain: bool  # unmasked, with the length in its shortest form


class RelayReader:
    """Passes messages to `on_message` and all other bytes to `hand_over`, in the order of the stream.

    Write the next bytes to `writable()` and report their number to `advance`. A message's receiver may keep its memory.
    """

    def __init__(
        self,
        on_message: Callable[[memoryview], None],
        hand_over: Callable[[bytes], None],
        is_open: Callable[[], bool],
        max_bytes: int,
    ) -> None:
        """`is_open` returns whether the library has accepted the handshake."""
        self._on_message = on_message
        self._hand_over = hand_over
        self._is_open = is_open
        self._max_bytes = max_bytes
        self._staging = memoryview(bytearray(STAGING_BYTES))
        self._staged = 0  # bytes in staging: those of an incomplete head
        self._message: memoryview | None = None  # the one that is being received
        self._filled = 0
        self._foreign_left: int | None = 0  # bytes left of a frame for the library; None: all bytes are
        self._is_fragmented = False  # in the middle of a message in several frames
        self._is_opening = True
        self._tail = b""  # the handshake's last bytes so far

    def writable(self) -> memoryview:
        """Return the memory for the next bytes of the stream, never empty."""
        if self._message is not None:
            return self._message[self._filled :]
        return self._staging[self._staged :]

    def advance(self, n_bytes: int) -> None:
        """Take the `n_bytes` that were written to `writable()`."""
        if self._message is not None:
            self._filled += n_bytes
            self._finish_message(self._message)
            return
        at, end = 0, self._staged + n_bytes
        self._staged = 0  # set before the callbacks, which may raise
        while at < end:
            n_taken = self._take(self._staging[at:end])
            if not n_taken:
                break
            at += n_taken
        self._staging[: end - at] = bytes(self._staging[at:end])
        self._staged = end - at

    def _take(self, data: memoryview) -> int:
        """Take a part from the start of `data` and return its bytes; 0 when it is incomplete."""
        if self._is_opening:
            return self._take_handshake(data)
        if self._foreign_left is None:
            self._hand_over(bytes(data))
            return len(data)
        if self._foreign_left:
            n_bytes = min(self._foreign_left, len(data))
            self._foreign_left -= n_bytes
            self._hand_over(bytes(data[:n_bytes]))
            return n_bytes
        head = _read_head(data)
        if head is None:
            return 0
        if head.first == BINARY_FINAL and head.is_plain and head.length <= self._max_bytes and not self._is_fragmented:
            return self._begin_message(head, data)
        self._note_foreign(head)
        return self._take(data)

    def _take_handshake(self, data: memoryview) -> int:
        """Hand over up to the empty line that ends the handshake, which may arrive in pieces."""
        known = self._tail + bytes(data)
        end = known.find(END_OF_HANDSHAKE)
        self._is_opening = end < 0
        n_bytes = len(data) if end < 0 else end + len(END_OF_HANDSHAKE) - len(self._tail)
        self._tail = known[-3:] if end < 0 else b""
        self._hand_over(bytes(data[:n_bytes]))
        if not self._is_opening and not self._is_open():
            self._foreign_left = None  # a refusal, and its body
        return n_bytes

    def _begin_message(self, head: _Head, data: memoryview) -> int:
        """Take a message, or begin to receive it in place. Only bytes that arrive cost memory: see the pool."""
        message = POOL.empty(head.length).data
        n_bytes = min(head.length, len(data) - head.n_bytes)
        message[:n_bytes] = data[head.n_bytes : head.n_bytes + n_bytes]
        self._message, self._filled = message, n_bytes
        self._finish_message(message)
        return head.n_bytes + n_bytes

    def _finish_message(self, message: memoryview) -> None:
        if self._filled == len(message):
            self._message, self._filled = None, 0
            self._on_message(message)

    def _note_foreign(self, head: _Head) -> None:
        """Leave this frame to the library, and all bytes after a frame that ends the connection."""
        opcode = head.first & OPCODE
        is_last = opcode == CLOSE or not head.is_plain or head.first & RESERVED or head.length > self._max_bytes
        self._foreign_left = None if is_last else head.n_bytes + head.length
        if not opcode & CONTROL:
            self._is_fragmented = not head.first & FINAL


def _read_head(data: memoryview) -> _Head | None:
    """Return the head that `data` begins with, or None while it is incomplete."""
    if len(data) < 2:
        return None
    first, second = data[0], data[1]
    length, n_bytes, least = second & ~MASKED, 2, 0
    if length == 126:
        n_bytes, least = 4, 126
    elif length == 127:
        n_bytes, least = 10, 65_536
    if len(data) < n_bytes:
        return None
    if n_bytes > 2:
        (length,) = (_MEDIUM if n_bytes == 4 else _LONG).unpack_from(data, 2)
    return _Head(first, n_bytes, length, not second & MASKED and length >= least)
