"""Encodes a GGUF version 3 header: metadata and tensor table, padded to where the data starts.

`slice_plan` writes slices with it. It knows the few value types that a slice needs, and no tensor data.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from kvasir.errors import GGUFError
from kvasir.gguf.header import DEFAULT_ALIGNMENT, MAGIC, TensorInfo
from kvasir.gguf.metadata import ValueType

HeaderValue = str | int | Sequence[int]


def encode_header(metadata: Mapping[str, HeaderValue], tensors: Sequence[TensorInfo]) -> bytes:
    """Header bytes for these tensors, whose offsets count from the start of the data section.

    Integers are stored as uint32, sequences as uint32 arrays. Raises GGUFError for an integer that does not fit.
    """
    pieces = [MAGIC, struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        pieces += [_string(key), _value(key, value)]
    for info in tensors:
        pieces.append(_string(info.name))
        pieces.append(struct.pack("<I", len(info.shape)))
        pieces += [struct.pack("<Q", dim) for dim in reversed(info.shape)]
        pieces.append(struct.pack("<IQ", int(info.quant_type), info.offset))
    header = b"".join(pieces)
    return header + bytes(-len(header) % DEFAULT_ALIGNMENT)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(key: str, value: HeaderValue) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", ValueType.STRING) + _string(value)
    numbers = [value] if isinstance(value, int) else list(value)
    if any(not 0 <= number < 1 << 32 for number in numbers):
        raise GGUFError(f"{key!r} is {value}; it must fit in an unsigned 32-bit integer")
    packed = struct.pack(f"<{len(numbers)}I", *numbers)
    if isinstance(value, int):
        return struct.pack("<I", ValueType.UINT32) + packed
    return struct.pack("<IIQ", ValueType.ARRAY, ValueType.UINT32, len(numbers)) + packed
