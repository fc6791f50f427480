"""The codec against golden frames that were written without it, and against the tables of docs/reference/wire.md."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvasir.experts import ExpertRange
from kvasir.kernels.api import RowFormat
from kvasir.wire import codec as wire
from kvasir.wire import frames as wire_frames
from kvasir.wire import header as wire_header
from kvasir.wire import payloads as wire_payloads
from kvasir.wire.codec import FrameDecoder, decode, encode, join
from kvasir.wire.frames import (
    Dispatch,
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
    ReplyType,
    Result,
    Role,
    SumOrder,
    SumResult,
    Welcome,
)
from kvasir.wire.header import Kind, Limits, WireType, encoded_row_bytes
from tests.golden.make_wire import FRAMES, GOLDEN, described

Entry = dict[str, Any]
ENTRIES: list[Entry] = json.loads(FRAMES.read_text())
PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "wire.md").read_text()


def mixed(count: int) -> npt.NDArray[np.uint32]:
    with np.errstate(over="ignore"):
        return np.arange(count, dtype=np.uint32) * np.uint32(2654435761)


def dispatch_of(fields: Entry) -> Dispatch:
    n_rows, n_pairs, d_model = fields["n_rows"], fields["n_pairs"], fields["d_model"]
    row_format = RowFormat(fields["dtype"])
    width = encoded_row_bytes(row_format, d_model)
    weights = ((mixed(n_pairs) >> 8) / 2**24).astype(np.float32)
    exponents = (mixed(n_rows) >> 24).astype(np.int32) - 180
    return Dispatch(
        fields["request"],
        fields["layer"],
        row_format,
        d_model,
        (mixed(n_rows * width) >> 24).astype(np.uint8).reshape(n_rows, width),
        np.arange(n_pairs, dtype=np.int32) % n_rows,
        (mixed(n_pairs) % 256).astype(np.int32),
        ReplyType.F16 if fields["flags"] & 1 else ReplyType.F32,
        bool(fields["flags"] & 2),
        SumOrder(weights, exponents) if fields["flags"] & 4 else None,
    )


def result_of(fields: Entry) -> Result:
    shape = fields["n_pairs"], fields["d_model"]
    numbers = mixed(shape[0] * shape[1])
    if fields["dtype"] == WireType.F16:
        return Result(fields["request"], fields["layer"], ((numbers >> 22) / 8 - 64).astype(np.float16).reshape(shape))
    values = ((numbers >> 8) / 65536 - 128).astype(np.float32)
    return Result(fields["request"], fields["layer"], values.reshape(shape))


def sum_result_of(fields: Entry) -> SumResult:
    n_rows, d_model = fields["n_rows"], fields["d_model"]
    numbers = mixed(n_rows * d_model).astype(np.int64).reshape(-1, 256)
    widths = np.resize(fields["widths"], (len(numbers), 1)).astype(np.int64)
    values = np.where(widths > 0, (numbers >> (32 - widths)) - (1 << np.maximum(widths - 1, 0)), 0)
    sums = values.astype(np.int32).reshape(n_rows, d_model)
    return SumResult(fields["request"], fields["layer"], fields["n_pairs"], sums)


def frame_of(entry: Entry) -> Frame:  # noqa: PLR0911 (one a kind)
    """The frame that a golden entry describes."""
    fields: Entry = entry["fields"]
    prints = fields.get("model_fingerprint", ""), fields.get("kernel_fingerprint", ""), fields.get("kernel", "")
    match entry["kind"]:
        case "DISPATCH":
            return dispatch_of(fields)
        case "RESULT":
            return sum_result_of(fields) if fields["dtype"] == WireType.SUMS else result_of(fields)
        case "HELLO":
            return Hello(Role(fields["role"]), *prints, Limits(*fields["limits"]), fields["name"], fields["token"])
        case "WELCOME":
            ranges = tuple(ExpertRange(*item) for item in fields["ranges"])
            kernel_rows = RowFormat(fields["row_format"])
            return Welcome(*prints, kernel_rows, fields["d_model"], ranges, Limits(*fields["limits"]), fields["name"])
        case "REFUSE":
            return Refuse(RefuseCode(fields["code"]), fields["message"])
        case "FAULT":
            return Fault(fields["request"], FaultCode(fields["code"]), fields["message"])
        case "PAUSE":
            return Pause(fields["milliseconds"])
        case "GOAWAY":
            return Goaway(fields["reason"])
        case "PING":
            return Ping(fields["number"])
        case _:
            return Pong(fields["number"])


def same(a: Frame, b: Frame) -> bool:
    """Equality that also holds for frames with tensors, to the bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Dispatch | Result | SumResult):
        names = a.__slots__
        return all(_same_value(getattr(a, name), getattr(b, name)) for name in names)
    return a == b


def _same_value(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, SumOrder) and isinstance(b, SumOrder):
        return _same_value(a.weights, b.weights) and _same_value(a.exponents, b.exponents)
    return bool(a == b)


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["name"] for entry in ENTRIES])
def test_codec_writes_and_reads_the_golden_bytes(entry: Entry) -> None:
    frame = frame_of(entry)
    data = join(encode(frame))
    assert len(data) == entry["bytes"]
    if "hex" in entry:
        assert data.hex() == entry["hex"]
    else:
        assert data[: wire_header.HEADER_BYTES].hex() == entry["header_hex"]
    assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    assert same(decode(data), frame)
    streamed = FrameDecoder().feed(data)
    assert len(streamed) == 1
    assert same(streamed[0], frame)


def test_golden_file_is_what_its_script_writes() -> None:
    assert [entry["name"] for entry in ENTRIES] == [name for name, _, _ in GOLDEN]
    for entry, item in zip(ENTRIES, GOLDEN, strict=True):
        if entry["bytes"] < 100_000:  # the script is slow; of larger frames the hash was checked above
            assert described(*item) == entry


def test_every_kind_and_the_sizes_that_break_codecs_are_golden() -> None:
    assert {entry["kind"] for entry in ENTRIES} == {kind.name for kind in Kind}
    payloads = {entry["bytes"] - wire_header.HEADER_BYTES for entry in ENTRIES}
    assert {65_535, 65_536, 65_537, 2**20 - 1, 2**20, 2**20 + 1, wire_header.MAX_PAYLOAD_BYTES} <= payloads


# The page


def table(title: str, number: int = 0) -> list[list[str]]:
    """Rows of a table below a heading of docs/reference/wire.md, header row included."""
    section = PAGE.split(f" {title}\n", 1)[1]
    section = re.split(r"\n#+ ", section, maxsplit=1)[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in tables[number].splitlines()]
    return [row for row in rows if not set("".join(row)) <= {"-"}]


def layout_of(title: str) -> list[tuple[int, int]]:
    """(offset, size) of the leading fixed fields of a table, in which all numbers are literal."""
    fixed = []
    for offset, size, *_ in table(title)[1:]:
        if not (offset.isdigit() and size.isdigit()):
            break
        fixed.append((int(offset), int(size)))
    return fixed


def layout_from(fmt: struct.Struct) -> list[tuple[int, int]]:
    """(offset, size) of the fields of a little-endian struct."""
    assert fmt.format.startswith("<")
    fields, offset = [], 0
    for count, code in re.findall(r"(\d*)([a-zA-Z])", fmt.format[1:]):
        times = 1 if code == "s" else int(count or 1)
        size = struct.calcsize(f"<{count if code == 's' else ''}{code}")
        for _ in range(times):
            fields.append((offset, size))
            offset += size
    return fields


@pytest.mark.parametrize(
    ("title", "layout"),
    [
        ("Header", wire_header.HEADER),
        ("HELLO", wire_payloads.HELLO),
        ("WELCOME", wire_payloads.WELCOME),
        ("REFUSE and FAULT", wire_payloads.CODE),
        ("PAUSE", wire_payloads.PAUSE),
    ],
)
def test_byte_tables_have_the_layout_of_the_code(title: str, layout: struct.Struct) -> None:
    assert layout_of(title) == layout_from(layout)
    after = [row for row in table(title)[1:] if row[1] == "text"][:1]
    if after:
        assert int(after[0][0]) == layout.size


def test_header_table_states_size_magic_and_version() -> None:
    rows = {row[2]: row[3] for row in table("Header")[1:]}
    assert bytes.fromhex(re.findall(r"`([0-9A-F ]+)`", rows["magic"])[0]) == wire_header.MAGIC
    assert int(rows["version"]) == wire_header.VERSION
    assert f"header of {wire_header.HEADER_BYTES} bytes" in PAGE


@pytest.mark.parametrize(
    ("title", "number", "codes"),
    [
        ("Kinds", 0, Kind),
        ("Value types", 0, WireType),
        ("REFUSE and FAULT", 1, RefuseCode),
        ("REFUSE and FAULT", 2, FaultCode),
    ],
)
def test_code_tables_name_every_code(title: str, number: int, codes: type[IntEnum]) -> None:
    rows = table(title, number)[1:]
    assert {row[1]: int(row[0]) for row in rows} == {code.name: int(code) for code in codes}


def test_flags_and_limits_have_the_values_of_the_code() -> None:
    flags = {f"FLAG_{row[1]}": int(row[0]) for row in table("DISPATCH", 1)[1:]}
    assert flags == {name: value for name, value in vars(wire_header).items() if name.startswith("FLAG_")}
    for name, value, _ in table("Limits")[1:]:
        module = next(m for m in (wire_header, wire, wire_frames) if hasattr(m, name))
        assert getattr(module, name) == int(value), name


def test_range_record_has_the_size_on_the_page() -> None:
    (size,) = (row[1] for row in table("WELCOME") if row[2] == "ranges")
    assert size == f"{wire_payloads.RANGE.size} × n_ranges"
