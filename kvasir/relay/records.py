"""The relay's layer over the wire: numbered records in WebSocket messages, and the message that opens a socket.

The relay and both ends of a relayed edge use it. A message is one or more records (edge u32, byte count u32, then
one frame of `kvasir.wire.codec`), little-endian. It does no I/O and does not read the frames in records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kvasir.errors import WireError
from kvasir.kernels.api import RowFormat
from kvasir.wire.codec import decode, encode, join
from kvasir.wire.frames import Frame, Hello, Role, Welcome
from kvasir.wire.header import HEADER_BYTES, MAX_PAYLOAD_BYTES, Buffer, Limits

RECORD = struct.Struct("<II")
RECORD_BYTES = RECORD.size
RELAY_EDGE = 0  # the number of records between a node and the relay itself
MAX_FRAME_BYTES = HEADER_BYTES + MAX_PAYLOAD_BYTES
MAX_BUNDLE_BYTES = 1024 * 1024  # senders add no further record to a message that has this many bytes
MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # accepted by every receiver; a bundle and one largest frame fit
MAX_OPENING_BYTES = 64 * 1024  # of the first message, before the sender has shown a token

HELLO_LIMITS = Limits(max_payload_bytes=8192, max_rows=1, max_pairs=1)


def record(edge: int, frame: Frame) -> bytes:
    """Return a small frame as a record. Raises WireError when it cannot be encoded."""
    data = join(encode(frame))
    return RECORD.pack(edge, len(data)) + data


def record_spans(message: Buffer) -> Iterator[tuple[int, int, int]]:
    """Yield (edge, start, stop) of each record's frame in `message`, in order.

    Raises WireError after the last whole record when the rest is not one.
    """
    at, end = 0, len(message)
    if not end:
        raise WireError("an empty message holds no record")
    while at < end:
        start = at + RECORD_BYTES
        if start > end:
            raise WireError(f"message ends at byte {end}, within the head of a record that starts at byte {at}")
        edge, n_bytes = RECORD.unpack_from(message, at)
        at = start + n_bytes
        if n_bytes > MAX_FRAME_BYTES:
            raise WireError(f"record of {n_bytes} bytes, at most {MAX_FRAME_BYTES} may travel")
        if at > end:
            raise WireError(f"message ends at byte {end}, its record for edge {edge} at byte {at}")
        yield edge, start, at


def opening_message(hello: Hello) -> bytes:
    """Return the first message of a socket: the role byte, then the hello's frame."""
    return bytes([hello.role]) + join(encode(hello))


def relay_welcome(hello: Hello, name: str, credit_bytes: int) -> Welcome:
    """Return the relay's answer, on edge 0, to a hello that it accepts. Only its limits have a meaning."""
    limits = Limits(max_inflight_bytes=credit_bytes)
    prints = hello.model_fingerprint, hello.kernel_fingerprint, hello.kernel
    return Welcome(*prints, RowFormat.F32, d_model=1, ranges=(), limits=limits, name=name)


def read_opening(message: Buffer) -> Hello:
    """Return the hello of a socket's first message.

    Raises WireError for any other message, WireVersionError when the sender speaks another version of the wire.
    """
    view = memoryview(message)
    if not view or view[0] not in (Role.BACKBONE, Role.WORKER):
        raise WireError(f"the first byte is {bytes(view[:1])!r}; a role byte is needed: b'B' or b'W'")
    frame = decode(view[1:], HELLO_LIMITS)
    if not isinstance(frame, Hello):
        raise WireError(f"the first frame is {type(frame).__name__}, Hello is needed")
    if frame.role != view[0]:
        raise WireError(f"the role byte is {bytes(view[:1])!r}, the hello says {frame.role.name}")
    return frame


def message_head(n_bytes: int, *, is_masked: bool = False) -> bytes:
    """Return the head, without the mask, of a whole binary WebSocket message of `n_bytes` (RFC 6455, section 5.2)."""
    mask_bit = 0x80 if is_masked else 0
    if n_bytes < 126:
        return struct.pack("!BB", 0x82, mask_bit | n_bytes)
    if n_bytes < 65_536:
        return struct.pack("!BBH", 0x82, mask_bit | 126, n_bytes)
    return struct.pack("!BBQ", 0x82, mask_bit | 127, n_bytes)
