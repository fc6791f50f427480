"""The header of one GGUF file: version, metadata and tensor table, parsed and encoded.

`gguf.index` reads the header of each part, `slicing.slices` encodes those of slices. Only the header's pages are
read: a tensor's bytes are located and checked against the file's size, never touched.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from mmap import mmap

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from kvasir.errors import GGUFError, UnsupportedModelError
from kvasir.gguf.cursor import HEADER_MAX_BYTES, HeaderCursor
from kvasir.gguf.metadata import Metadata, ValueType, read_metadata

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_MAX = 1 << 20
TENSORS_MAX = 1 << 18
TENSOR_NAME_MAX_BYTES = 255
DIMS_MAX = 4
TENSOR_MAX_BYTES = 1 << 62

HeaderValue = str | int | Sequence[int]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's place. `shape` is in numpy's order (outermost first); `offset` is absolute in part number `part`."""

    name: str
    shape: tuple[int, ...]
    quant_type: GGMLQuantizationType
    part: int
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class PartHeader:
    """The header of one part. The data section starts at `data_start` and reaches to the end of the file."""

    metadata: Metadata
    tensors: tuple[TensorInfo, ...]
    data_start: int


def read_header(buffer: mmap | bytes, n_bytes: int, label: str, part: int = 0) -> PartHeader:
    """Parse the header of a file of `n_bytes` bytes mapped in `buffer`; `label` names it in errors.

    Raises GGUFError unless it is a valid little-endian GGUF file of version 2 or 3, UnsupportedModelError for an
    unknown tensor type.
    """
    cursor = HeaderCursor(buffer, min(n_bytes, HEADER_MAX_BYTES), label)
    _check_version(cursor)
    n_tensors = cursor.u64("the tensor count")
    n_pairs = cursor.u64("the metadata count")
    if n_tensors > TENSORS_MAX:
        raise GGUFError(f"{label}: the header claims {n_tensors} tensors; at most {TENSORS_MAX} are allowed")
    metadata = read_metadata(cursor, n_pairs)
    alignment = _alignment(metadata, label)
    relative = _read_tensor_table(cursor, n_tensors, part)
    data_start = -(-cursor.position // alignment) * alignment
    tensors = tuple(replace(info, offset=info.offset + data_start) for info in relative)
    _check_places(tensors, alignment, n_bytes, label)
    return PartHeader(metadata, tensors, data_start)


def _check_version(cursor: HeaderCursor) -> None:
    magic = cursor.raw(4, "the magic")
    if magic != MAGIC:
        raise GGUFError(f"{cursor.label}: not a GGUF file: it starts with {magic!r}, not {MAGIC!r}")
    version = cursor.u32("the version")
    if version in VERSIONS:
        return
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in VERSIONS:
        raise GGUFError(f"{cursor.label}: a big-endian GGUF file; only little-endian files can be read")
    raise GGUFError(f"{cursor.label}: GGUF version {version} is not supported; versions 2 and 3 are")


def _alignment(metadata: Metadata, label: str) -> int:
    alignment = metadata.integer("general.alignment", DEFAULT_ALIGNMENT)
    if alignment < 8 or alignment > ALIGNMENT_MAX or alignment & (alignment - 1):
        raise GGUFError(
            f"{label}: general.alignment is {alignment}; it must be a power of two from 8 to {ALIGNMENT_MAX}"
        )
    return alignment


def _read_tensor_table(cursor: HeaderCursor, n_tensors: int, part: int) -> list[TensorInfo]:
    infos: dict[str, TensorInfo] = {}
    for number in range(n_tensors):
        name = cursor.string(f"the name of tensor {number}", TENSOR_NAME_MAX_BYTES)
        if name in infos:
            raise GGUFError(f"{cursor.label}: the tensor {name!r} occurs twice")
        infos[name] = _read_tensor(cursor, name, part)
    return list(infos.values())


def _read_tensor(cursor: HeaderCursor, name: str, part: int) -> TensorInfo:
    what = f"tensor {name!r}"
    n_dims = cursor.u32(f"the dimension count of {what}")
    if not 1 <= n_dims <= DIMS_MAX:
        raise GGUFError(f"{cursor.label}: {what} has {n_dims} dimensions; 1 to {DIMS_MAX} are allowed")
    dims = [cursor.u64(f"a dimension of {what}") for _ in range(n_dims)]
    type_number = cursor.u32(f"the type of {what}")
    offset = cursor.u64(f"the offset of {what}")
    try:
        quant_type = GGMLQuantizationType(type_number)
    except ValueError:
        raise UnsupportedModelError(f"{cursor.label}: {what} has the unknown ggml type {type_number}") from None
    block_weights, block_bytes = GGML_QUANT_SIZES[quant_type]
    if dims[0] % block_weights or 0 in dims:
        raise GGUFError(
            f"{cursor.label}: {what} has dimensions {dims}; all must be above 0, and the first a multiple of "
            f"{block_weights} (a {quant_type.name} block)"
        )
    n_bytes = dims[0] // block_weights * block_bytes
    for dim in dims[1:]:
        n_bytes *= dim
    if n_bytes > TENSOR_MAX_BYTES:
        raise GGUFError(f"{cursor.label}: {what} with dimensions {dims} would have {n_bytes} bytes")
    return TensorInfo(name, tuple(reversed(dims)), quant_type, part, offset, n_bytes)


def _check_places(tensors: tuple[TensorInfo, ...], alignment: int, n_bytes: int, label: str) -> None:
    """Check that every tensor is aligned and inside the file, and that none overlap."""
    previous_stop, previous_name = 0, ""
    for info in sorted(tensors, key=lambda info: info.offset):
        if info.offset % alignment:
            raise GGUFError(f"{label}: tensor {info.name!r} is at byte {info.offset}, not on a multiple of {alignment}")
        if info.offset < previous_stop:
            raise GGUFError(f"{label}: tensors {previous_name!r} and {info.name!r} overlap at byte {info.offset}")
        previous_stop, previous_name = info.offset + info.n_bytes, info.name
        if previous_stop > n_bytes:
            raise GGUFError(
                f"{label}: tensor {info.name!r} ends at byte {previous_stop}, the file at {n_bytes}: it is truncated"
            )


def encode_header(metadata: Mapping[str, HeaderValue], tensors: Sequence[TensorInfo]) -> bytes:
    """Encode a version 3 header for these tensors, whose offsets count from the start of the data section.

    The header is padded to where the data starts. Integers are stored as uint32, sequences as uint32 arrays. Raises
    GGUFError for an integer that does not fit.
    """
    pieces = [MAGIC, struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        pieces += [_encoded_string(key), _encoded_value(key, value)]
    for info in tensors:
        pieces.append(_encoded_string(info.name))
        pieces.append(struct.pack("<I", len(info.shape)))
        pieces += [struct.pack("<Q", dim) for dim in reversed(info.shape)]
        pieces.append(struct.pack("<IQ", int(info.quant_type), info.offset))
    header = b"".join(pieces)
    return header + bytes(-len(header) % DEFAULT_ALIGNMENT)


def _encoded_string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _encoded_value(key: str, value: HeaderValue) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", ValueType.STRING) + _encoded_string(value)
    numbers = [value] if isinstance(value, int) else list(value)
    if any(not 0 <= number < 1 << 32 for number in numbers):
        raise GGUFError(f"{key!r} is {value}; it must fit in an unsigned 32-bit integer")
    packed = struct.pack(f"<{len(numbers)}I", *numbers)
    if isinstance(value, int):
        return struct.pack("<I", ValueType.UINT32) + packed
    return struct.pack("<IIQ", ValueType.ARRAY, ValueType.UINT32, len(numbers)) + packed
