"""Payloads of the frames that carry no tensor: handshake, refusals, faults and notices.

`wire.codec` calls `pack_payload` and `unpack_payload`. Integers are little-endian, texts are a u16 byte count and
UTF-8. Too few bytes, too many bytes and malformed text raise WireError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from itertools import pairwise
from typing import Any, TypeVar

from kvasir.errors import SliceError, WireError
from kvasir.experts import ExpertRange
from kvasir.kernels.api import RowFormat
from kvasir.wire.frames import (
    MAX_TEXT_BYTES,
    Fault,
    FaultCode,
    Frame,
    Goaway,
    Hello,
    Pause,
    Ping,
    Pong,
    Refuse,
    RefuseCode,
    Role,
    Welcome,
    has_controls,
)
from kvasir.wire.header import MAX_D_MODEL, Header, Kind, Limits

HELLO = struct.Struct("<B32s32sIIII")  # then kernel, name, token
WELCOME = struct.Struct("<32s32sIIIIBII")  # then kernel, name, ranges
RANGE = struct.Struct("<III")
CODE = struct.Struct("<H")  # Refuse and Fault; then the message
PAUSE = struct.Struct("<I")
TEXT_LENGTH = struct.Struct("<H")

Code = TypeVar("Code", bound=IntEnum)


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    _check_text(value, len(data))
    return TEXT_LENGTH.pack(len(data)) + data


def _check_text(value: str, n_bytes: int) -> None:
    if n_bytes > MAX_TEXT_BYTES:
        raise WireError(f"text of {n_bytes} bytes, at most {MAX_TEXT_BYTES} may travel")
    if has_controls(value):
        raise WireError(f"text {value[:40]!r} has control characters")


def _fingerprint(value: str) -> bytes:
    try:
        digest = bytes.fromhex(value)
    except ValueError:
        digest = b""
    if len(digest) != 32 or value != digest.hex():
        raise WireError(f"fingerprint {value[:80]!r} is not 64 lower-case hex digits")
    return digest


def _limits(limits: Limits) -> tuple[int, int, int, int]:
    return limits.max_payload_bytes, limits.max_rows, limits.max_pairs, limits.max_inflight_bytes


class _Reader:
    """Reads a payload field by field, never past its end."""

    def __init__(self, kind: Kind, payload: memoryview) -> None:
        self._kind = kind
        self._payload = payload
        self._at = 0

    def _take(self, n_bytes: int) -> memoryview:
        end = self._at + n_bytes
        if end > len(self._payload):
            raise WireError(f"{self._kind.name} payload ends at byte {len(self._payload)}, byte {end} is needed")
        self._at, start = end, self._at
        return self._payload[start:end]

    def fields(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self._take(layout.size))

    def text(self) -> str:
        (n_bytes,) = TEXT_LENGTH.unpack(self._take(TEXT_LENGTH.size))
        if n_bytes > MAX_TEXT_BYTES:
            raise WireError(f"{self._kind.name} has a text of {n_bytes} bytes, at most {MAX_TEXT_BYTES} may travel")
        try:
            value = bytes(self._take(n_bytes)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise WireError(f"{self._kind.name} has a text that is not UTF-8: {error}") from error
        _check_text(value, n_bytes)
        return value

    def code(self, codes: type[Code]) -> Code:
        (number,) = CODE.unpack(self._take(CODE.size))
        try:
            return codes(number)
        except ValueError as error:
            raise WireError(f"{self._kind.name} has unknown code {number}") from error

    def ranges(self, count: int) -> tuple[ExpertRange, ...]:
        data = self._take(count * RANGE.size)
        try:
            ranges = tuple(ExpertRange(*numbers) for numbers in RANGE.iter_unpack(data))
        except SliceError as error:
            raise WireError(f"{self._kind.name}: {error}") from error
        _check_ranges(ranges)
        return ranges

    def end(self) -> None:
        if self._at != len(self._payload):
            raise WireError(f"{self._kind.name} payload has {len(self._payload) - self._at} bytes too many")


def _check_ranges(ranges: tuple[ExpertRange, ...]) -> None:
    for before, after in pairwise(ranges):
        if (after.layer, after.start) < (before.layer, before.stop if after.layer == before.layer else 0):
            raise WireError(f"expert ranges {before} and {after} overlap or do not ascend")


def _pack_hello(frame: Hello) -> bytes:
    head = HELLO.pack(
        frame.role,
        _fingerprint(frame.model_fingerprint),
        _fingerprint(frame.kernel_fingerprint),
        *_limits(frame.limits),
    )
    return head + _text(frame.kernel) + _text(frame.name) + _text(frame.token)


def _unpack_hello(_header: Header, reader: _Reader) -> Hello:
    role, model, kernel, *limits = reader.fields(HELLO)
    if role not in Role._value2member_map_:
        raise WireError(f"role byte {int(role)} is unknown; {Role.BACKBONE} (B) and {Role.WORKER} (W) exist")
    texts = reader.text(), reader.text(), reader.text()
    return Hello(Role(role), bytes(model).hex(), bytes(kernel).hex(), texts[0], Limits(*limits), *texts[1:])


def _pack_welcome(frame: Welcome) -> bytes:
    _check_ranges(frame.ranges)
    head = WELCOME.pack(
        _fingerprint(frame.model_fingerprint),
        _fingerprint(frame.kernel_fingerprint),
        *_limits(frame.limits),
        frame.row_format,
        frame.d_model,
        len(frame.ranges),
    )
    ranges = b"".join(RANGE.pack(r.layer, r.start, r.stop) for r in frame.ranges)
    return head + _text(frame.kernel) + _text(frame.name) + ranges


def _unpack_welcome(_header: Header, reader: _Reader) -> Welcome:
    model, kernel, *numbers = reader.fields(WELCOME)
    *limits, row_format, d_model, n_ranges = (int(n) for n in numbers)
    if row_format not in RowFormat._value2member_map_:
        raise WireError(f"row format {row_format} is unknown; {[f.value for f in RowFormat]} exist")
    if not 1 <= d_model <= MAX_D_MODEL:
        raise WireError(f"d_model is {d_model}, 1 to {MAX_D_MODEL} is allowed")
    texts = reader.text(), reader.text()
    return Welcome(
        bytes(model).hex(),
        bytes(kernel).hex(),
        texts[0],
        RowFormat(row_format),
        d_model,
        reader.ranges(n_ranges),
        Limits(*limits),
        texts[1],
    )


def _unpack_pause(_header: Header, reader: _Reader) -> Pause:
    (milliseconds,) = reader.fields(PAUSE)
    return Pause(int(milliseconds))


_UNPACK: Mapping[Kind, Callable[[Header, _Reader], Frame]] = {
    Kind.HELLO: _unpack_hello,
    Kind.WELCOME: _unpack_welcome,
    Kind.REFUSE: lambda _header, reader: Refuse(reader.code(RefuseCode), reader.text()),
    Kind.FAULT: lambda header, reader: Fault(header.request, reader.code(FaultCode), reader.text()),
    Kind.PAUSE: _unpack_pause,
    Kind.GOAWAY: lambda _header, reader: Goaway(reader.text()),
    Kind.PING: lambda header, _reader: Ping(header.request),
    Kind.PONG: lambda header, _reader: Pong(header.request),
}


def unpack_payload(header: Header, payload: memoryview) -> Frame:
    """Return the frame, of any kind but Dispatch and Result. Raises WireError."""
    reader = _Reader(header.kind, payload)
    frame = _UNPACK[header.kind](header, reader)
    reader.end()
    return frame


def pack_payload(frame: Frame) -> tuple[Kind, int, bytes]:
    """Return kind, request number and payload bytes of any frame but Dispatch and Result.

    Raises WireError when a text, number or fingerprint in it is out of bounds.
    """
    try:
        return _pack(frame)
    except struct.error as error:
        raise WireError(f"{type(frame).__name__}: a number does not fit its width: {error}") from error


def _pack(frame: Frame) -> tuple[Kind, int, bytes]:  # noqa: PLR0911 (one a kind)
    match frame:
        case Hello():
            return Kind.HELLO, 0, _pack_hello(frame)
        case Welcome():
            return Kind.WELCOME, 0, _pack_welcome(frame)
        case Refuse(code, message):
            return Kind.REFUSE, 0, CODE.pack(code) + _text(message)
        case Fault(request, code, message):
            return Kind.FAULT, request, CODE.pack(code) + _text(message)
        case Pause(milliseconds):
            return Kind.PAUSE, 0, PAUSE.pack(milliseconds)
        case Goaway(reason):
            return Kind.GOAWAY, 0, _text(reason)
        case Ping(number):
            return Kind.PING, number, b""
        case Pong(number):
            return Kind.PONG, number, b""
        case _:
            raise WireError(f"{type(frame).__name__} is a tensor frame")
