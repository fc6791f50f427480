"""The fixed header that opens every frame: its layout, its limits and its checksum.

`wire.codec` packs and checks headers with it; docs/reference/wire.md and the golden files describe the same bytes. It
does no I/O and reads no payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from kvasir.errors import WireError, WireVersionError
from kvasir.kernels.api import RowFormat

try:
    from isal.isal_zlib import crc32 as _crc32  # the same value as zlib's, by carry-less multiplication: much faster
except ImportError:  # a platform without its wheel
    from zlib import crc32 as _crc32

MAGIC = b"KVSR"
VERSION = 2
HEADER = struct.Struct("<4sBBBBIIIIIII")
HEADER_BYTES = HEADER.size
CHECKED_BYTES = HEADER_BYTES - 4  # the header's bytes under the checksum: all before it

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
MAX_CONTROL_BYTES = 1024 * 1024  # of a payload without a tensor
MAX_ROWS = 8192
MAX_PAIRS = 65_536
MAX_D_MODEL = 65_536
MAX_INFLIGHT_BYTES = 2**32 - 1

crc32 = _crc32  # (data, crc of what came before = 0)

KX1_VALUES = 256
KX1_BLOCK_BYTES = 261

Buffer = bytes | bytearray | memoryview


class Kind(IntEnum):
    """The kind of a frame."""

    HELLO = 1
    WELCOME = 2
    REFUSE = 3
    DISPATCH = 4
    RESULT = 5
    FAULT = 6
    PAUSE = 7
    GOAWAY = 8
    PING = 9
    PONG = 10


class WireType(IntEnum):
    """The type of a payload's values. F32 and KX1 have the numbers of `RowFormat`."""

    NONE = 0
    F32 = 1
    KX1 = 2
    F16 = 3
    SUMS = 4


FLAG_REPLY_F16 = 1  # Dispatch: answer in f16 where the values fit
FLAG_MORE = 2  # Dispatch: another of the same layer follows at once; computing them together is cheaper
FLAG_SUMS = 4  # Dispatch: it has weights and exponents; answer with sums
DISPATCH_FLAGS = FLAG_REPLY_F16 | FLAG_MORE | FLAG_SUMS
TENSOR_KINDS = frozenset({Kind.DISPATCH, Kind.RESULT})
DISPATCH_TYPES = frozenset({WireType.F32, WireType.KX1})
RESULT_TYPES = frozenset({WireType.F32, WireType.F16, WireType.SUMS})


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes of Dispatch and Result that one side accepts. Each side states its own in the handshake."""

    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    max_rows: int = MAX_ROWS
    max_pairs: int = MAX_PAIRS
    max_inflight_bytes: int = 8 * MAX_PAYLOAD_BYTES

    def __post_init__(self) -> None:
        for name, value, most in (
            ("max_payload_bytes", self.max_payload_bytes, MAX_PAYLOAD_BYTES),
            ("max_rows", self.max_rows, MAX_ROWS),
            ("max_pairs", self.max_pairs, MAX_PAIRS),
            ("max_inflight_bytes", self.max_inflight_bytes, MAX_INFLIGHT_BYTES),
        ):
            if not 1 <= value <= most:
                raise WireError(f"limit {name} is {value}, 1 to {most} is allowed")


PROTOCOL_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Header:
    """The header's fields, as numbers; `wire_type` and `flags` are 0 for kinds that carry no tensor."""

    kind: Kind
    wire_type: WireType = WireType.NONE
    flags: int = 0
    request: int = 0
    layer: int = 0
    n_rows: int = 0
    n_pairs: int = 0
    d_model: int = 0
    payload_bytes: int = 0
    version: int = VERSION

    def check(self, limits: Limits) -> None:
        """Raise WireError unless the counts agree with each other and with `limits`. Both ends call this."""
        is_tensor = self.kind in TENSOR_KINDS
        most = limits.max_payload_bytes if is_tensor else MAX_CONTROL_BYTES
        if self.payload_bytes > most:
            raise WireError(f"{self.kind.name} payload of {self.payload_bytes} bytes is over the limit of {most}")
        if not is_tensor:
            self._check_plain()
            return
        self._check_counts(limits)
        self._check_tensor_bytes(limits)

    def _check_plain(self) -> None:
        if self.wire_type or self.flags or self.layer or self.n_rows or self.n_pairs or self.d_model:
            raise WireError(f"{self.kind.name} has a header field set that this kind does not use")
        if self.request and self.kind not in {Kind.FAULT, Kind.PING, Kind.PONG}:
            raise WireError(f"{self.kind.name} has request number {self.request}; this kind has none")

    def _check_counts(self, limits: Limits) -> None:
        is_dispatch = self.kind is Kind.DISPATCH
        if self.wire_type not in (DISPATCH_TYPES if is_dispatch else RESULT_TYPES):
            raise WireError(f"{self.kind.name} cannot carry values of type {self.wire_type.name}")
        if self.flags & ~(DISPATCH_FLAGS if is_dispatch else 0):
            raise WireError(f"{self.kind.name} has unknown flags {self.flags:#04x}")
        if self.flags & FLAG_SUMS and self.flags & FLAG_REPLY_F16:
            raise WireError("DISPATCH asks for sums and for f16; sums are integers")
        if self.request == 0:
            raise WireError(f"{self.kind.name} has request number 0; numbers start at 1")
        if not 1 <= self.d_model <= MAX_D_MODEL:
            raise WireError(f"d_model is {self.d_model}, 1 to {MAX_D_MODEL} is allowed")
        if not 1 <= self.n_pairs <= limits.max_pairs:
            raise WireError(f"{self.n_pairs} pairs in one frame, 1 to {limits.max_pairs} is allowed")
        has_rows = is_dispatch or self.wire_type is WireType.SUMS
        if has_rows and not 1 <= self.n_rows <= limits.max_rows:
            raise WireError(f"{self.n_rows} rows in one frame, 1 to {limits.max_rows} is allowed")
        if not has_rows and self.n_rows:
            raise WireError(f"RESULT has n_rows {self.n_rows}; it counts its rows as pairs")
        if (self.flags & FLAG_SUMS or self.wire_type is WireType.SUMS) and self.d_model % KX1_VALUES:
            raise WireError(f"sums have whole blocks of {KX1_VALUES} values; d_model is {self.d_model}")

    def _check_tensor_bytes(self, limits: Limits) -> None:
        least, most = self.tensor_bytes()
        if not least <= self.payload_bytes <= most:
            wanted = f"{most}" if least == most else f"{least} to {most}"
            raise WireError(
                f"{self.kind.name} with {self.n_rows} rows, {self.n_pairs} pairs and d_model {self.d_model} "
                f"needs a payload of {wanted} bytes, not {self.payload_bytes}"
            )
        if most > limits.max_payload_bytes:  # else a small frame could unpack to more memory than a large one
            raise WireError(
                f"{self.kind.name} of sums that may have {most} bytes is over the limit of {limits.max_payload_bytes}"
            )

    def tensor_bytes(self) -> tuple[int, int]:
        """Return the least and the most payload bytes that the counts of a Dispatch or Result allow."""
        if self.wire_type is WireType.SUMS:
            return self.n_rows * (self.d_model // KX1_VALUES), sums_bytes(self.n_rows, self.d_model)
        if self.kind is Kind.RESULT:
            exact = self.n_pairs * self.d_model * (2 if self.wire_type is WireType.F16 else 4)
        else:
            exact = 8 * self.n_pairs + self.n_rows * encoded_row_bytes(RowFormat(self.wire_type), self.d_model)
            exact += 4 * (self.n_pairs + self.n_rows) if self.flags & FLAG_SUMS else 0
        return exact, exact

    def pack(self, payload: Iterable[Buffer]) -> bytes:
        """Return the header's bytes, with the checksum over them and `payload`."""
        head = self._pack_with(0)[:CHECKED_BYTES]
        return self._pack_with(checksum(head, payload))

    def _pack_with(self, check: int) -> bytes:
        try:
            first = self.version, self.kind, self.wire_type, self.flags, self.request, self.layer
            return HEADER.pack(MAGIC, *first, self.n_rows, self.n_pairs, self.d_model, self.payload_bytes, check)
        except struct.error as error:
            raise WireError(f"{self.kind.name}: a header field does not fit its width: {error}") from error


def encoded_row_bytes(row_format: RowFormat, d_model: int) -> int:
    """Return the bytes of one row on the wire. Raises WireError when the format has no row of this width."""
    if row_format is RowFormat.F32:
        return 4 * d_model
    if d_model % KX1_VALUES:
        raise WireError(f"KX1 rows have whole blocks of {KX1_VALUES} values; d_model is {d_model}")
    return d_model // KX1_VALUES * KX1_BLOCK_BYTES


def sums_bytes(n_rows: int, d_model: int) -> int:
    """Return the most bytes that the packed sums of `n_rows` rows can have."""
    return n_rows * (4 * d_model + d_model // KX1_VALUES)


def checksum(head: Buffer, payload: Iterable[Buffer]) -> int:
    """Return the CRC-32 (as zlib defines it) of the first 32 header bytes, then the payload."""
    crc = crc32(head)
    for part in payload:
        crc = crc32(part, crc)
    return crc


def unpack_header(data: Buffer, limits: Limits) -> tuple[Header, int]:
    """Return the header at the start of `data` (at least 36 bytes), checked, and its checksum field.

    Raises WireVersionError for another version (except for a Refuse, which every version can read), WireError for
    anything else that is not a header within `limits`. So no payload is allocated for a length over the limits.
    """
    magic, version, kind, wire_type, flags, request, layer, n_rows, n_pairs, d_model, payload_bytes, check = (
        HEADER.unpack_from(data)
    )
    if magic != MAGIC:
        raise WireError(f"frame starts with {magic!r}, {MAGIC!r} is needed")
    if version != VERSION and kind != Kind.REFUSE:
        raise WireVersionError(f"wire version {version} from the other side, this side speaks {VERSION}")
    if kind not in Kind._value2member_map_:
        raise WireError(f"frame kind {kind} is unknown; {min(Kind)} to {max(Kind)} exist")
    if wire_type not in WireType._value2member_map_:
        raise WireError(f"value type {wire_type} is unknown; {min(WireType)} to {max(WireType)} exist")
    counts = flags, request, layer, n_rows, n_pairs, d_model, payload_bytes
    header = Header(Kind(kind), WireType(wire_type), *counts, version)
    header.check(limits)
    return header, check
