"""Writes tests/golden/wire/frames.json: golden frames, from the tables of docs/reference/wire.md with `struct` alone.

Run `python -m tests.golden.make_wire` when the wire gets a new version. It imports nothing of kvasir, so that
the codec is checked against the page and not against itself.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from pathlib import Path
from typing import Any

MODEL = bytes(range(32))
KERNEL = bytes(range(255, 223, -1))
KINDS = {"HELLO": 1, "WELCOME": 2, "REFUSE": 3, "DISPATCH": 4, "RESULT": 5}
KINDS |= {"FAULT": 6, "PAUSE": 7, "GOAWAY": 8, "PING": 9, "PONG": 10}
F32, KX1, F16, SUMS = 1, 2, 3, 4
FLAG_SUMS = 4
Fields = dict[str, Any]


def mixed(i: int) -> int:
    """The generator of every large payload: a u32 from a counter (JavaScript: Math.imul(i, 2654435761) >>> 0)."""
    return i * 2654435761 % 2**32


def frame(kind: str, payload: bytes, *, dtype: int = 0, flags: int = 0, numbers: tuple[int, ...] = (0,) * 5) -> bytes:
    """Header and payload; `numbers` are request, layer, n_rows, n_pairs, d_model."""
    head = struct.pack("<4sBBBB5II", b"KVSR", 2, KINDS[kind], dtype, flags, *numbers, len(payload))
    return head + struct.pack("<I", zlib.crc32(head + payload)) + payload


def text(value: str) -> bytes:
    """A text: u16 byte count, UTF-8."""
    data = value.encode()
    return struct.pack("<H", len(data)) + data


def dispatch(fields: Fields) -> bytes:
    """A Dispatch whose pairs and rows come from `mixed`."""
    n_rows, n_pairs, d_model, dtype = (fields[key] for key in ("n_rows", "n_pairs", "d_model", "dtype"))
    row_bytes = 4 * d_model if dtype == F32 else d_model // 256 * 261
    payload = struct.pack(f"<{n_pairs}I", *(i % n_rows for i in range(n_pairs)))
    payload += struct.pack(f"<{n_pairs}I", *(mixed(i) % 256 for i in range(n_pairs)))
    if fields["flags"] & FLAG_SUMS:
        payload += struct.pack(f"<{n_pairs}f", *((mixed(i) >> 8) / 2**24 for i in range(n_pairs)))
        payload += struct.pack(f"<{n_rows}i", *((mixed(i) >> 24) - 180 for i in range(n_rows)))
    payload += bytes(mixed(i) >> 24 for i in range(n_rows * row_bytes))
    numbers = (fields["request"], fields["layer"], n_rows, n_pairs, d_model)
    return frame("DISPATCH", payload, dtype=dtype, flags=fields["flags"], numbers=numbers)


def result(fields: Fields) -> bytes:
    """A Result whose values come from `mixed` and are exact in their type."""
    n_pairs, d_model = fields["n_pairs"], fields["d_model"]
    count = n_pairs * d_model
    if fields["dtype"] == F32:
        payload = struct.pack(f"<{count}f", *((mixed(i) >> 8) / 65536 - 128 for i in range(count)))
    else:
        payload = struct.pack(f"<{count}e", *((mixed(i) >> 22) / 8 - 64 for i in range(count)))
    numbers = (fields["request"], fields["layer"], 0, n_pairs, d_model)
    return frame("RESULT", payload, dtype=fields["dtype"], numbers=numbers)


def sum_result(fields: Fields) -> bytes:
    """A Result in sums: block b of 256 values has the width `widths[b mod their count]`, and values that need it."""
    n_rows, d_model, widths = fields["n_rows"], fields["d_model"], fields["widths"]
    payload = bytearray()
    for block in range(n_rows * d_model // 256):
        width, bits = widths[block % len(widths)], 0
        for k in range(256 if width else 0):
            value = (mixed(256 * block + k) >> (32 - width)) - 2 ** (width - 1)
            bits |= value % 2**width << width * k
        payload += bytes([width]) + bits.to_bytes(32 * width, "little")
    numbers = (fields["request"], fields["layer"], n_rows, fields["n_pairs"], d_model)
    return frame("RESULT", bytes(payload), dtype=SUMS, numbers=numbers)


def hello(fields: Fields) -> bytes:
    """A Hello."""
    head = struct.pack("<B32s32s4I", fields["role"], MODEL, KERNEL, *fields["limits"])
    return frame("HELLO", head + text(fields["kernel"]) + text(fields["name"]) + text(fields["token"]))


def welcome(fields: Fields) -> bytes:
    """A Welcome."""
    ranges = fields["ranges"]
    head = struct.pack(
        "<32s32s4IBII", MODEL, KERNEL, *fields["limits"], fields["row_format"], fields["d_model"], len(ranges)
    )
    texts = text(fields["kernel"]) + text(fields["name"])
    return frame("WELCOME", head + texts + b"".join(struct.pack("<3I", *item) for item in ranges))


def coded(kind: str, fields: Fields) -> bytes:
    """A Refuse or a Fault."""
    payload = struct.pack("<H", fields["code"]) + text(fields["message"])
    return frame(kind, payload, numbers=(fields.get("request", 0), 0, 0, 0, 0))


def build(kind: str, fields: Fields) -> bytes:  # noqa: PLR0911 (one a kind)
    """The bytes of one golden frame."""
    match kind:
        case "DISPATCH":
            return dispatch(fields)
        case "RESULT":
            return sum_result(fields) if fields["dtype"] == SUMS else result(fields)
        case "HELLO":
            return hello(fields)
        case "WELCOME":
            return welcome(fields)
        case "REFUSE" | "FAULT":
            return coded(kind, fields)
        case "PAUSE":
            return frame(kind, struct.pack("<I", fields["milliseconds"]))
        case "GOAWAY":
            return frame(kind, text(fields["reason"]))
        case _:
            return frame(kind, b"", numbers=(fields["number"], 0, 0, 0, 0))


def dispatch_fields(n_rows: int, n_pairs: int, d_model: int = 256, dtype: int = KX1, flags: int = 0) -> Fields:
    """Fields of a Dispatch."""
    numbers = {"request": 7, "layer": 3, "n_rows": n_rows, "n_pairs": n_pairs, "d_model": d_model}
    return {**numbers, "dtype": dtype, "flags": flags}


def result_fields(n_pairs: int, d_model: int, dtype: int = F32) -> Fields:
    """Fields of a Result."""
    return {"request": 4294967295, "layer": 47, "n_pairs": n_pairs, "d_model": d_model, "dtype": dtype}


def sum_result_fields(n_rows: int, n_pairs: int, d_model: int, widths: list[int]) -> Fields:
    """Fields of a Result in sums."""
    return {**result_fields(n_pairs, d_model, SUMS), "n_rows": n_rows, "widths": widths}


LIMITS = [8388608, 8192, 65536, 67108864]
PRINTS = {"model_fingerprint": MODEL.hex(), "kernel_fingerprint": KERNEL.hex(), "kernel": "kx1"}
GOLDEN: list[tuple[str, str, Fields]] = [
    ("hello", "HELLO", {"role": 66, **PRINTS, "limits": LIMITS, "name": "kvasir", "token": ""}),
    (
        "hello_worker_token",
        "HELLO",
        {"role": 87, **PRINTS, "limits": [1, 1, 1, 1], "name": "été 🜁", "token": "t" * 1024},
    ),
    (
        "welcome",
        "WELCOME",
        {
            **PRINTS,
            "limits": LIMITS,
            "name": "w",
            "row_format": KX1,
            "d_model": 3072,
            "ranges": [[0, 4, 8], [0, 12, 16], [9, 0, 1]],
        },
    ),
    (
        "welcome_empty",
        "WELCOME",
        {**PRINTS, "limits": LIMITS, "name": "", "row_format": F32, "d_model": 1, "ranges": []},
    ),
    (
        "refuse",
        "REFUSE",
        {"code": 3, "message": "model fingerprint: the backbone has 00, this worker's slice is of 01"},
    ),
    ("fault", "FAULT", {"request": 12, "code": 3, "message": "local id 9 does not exist, there are 8"}),
    ("fault_of_the_edge", "FAULT", {"request": 0, "code": 1, "message": ""}),
    ("fault_busy", "FAULT", {"request": 13, "code": 7, "message": "16777216 bytes are under way"}),
    ("fault_gone", "FAULT", {"request": 0, "code": 8, "message": "worker gone"}),
    ("pause", "PAUSE", {"milliseconds": 1500}),
    ("goaway", "GOAWAY", {"reason": "the worker got SIGTERM"}),
    ("ping", "PING", {"number": 1}),
    ("pong", "PONG", {"number": 4294967295}),
    ("dispatch_kx1", "DISPATCH", dispatch_fields(2, 3)),
    ("dispatch_f32", "DISPATCH", dispatch_fields(2, 3, d_model=5, dtype=F32)),
    ("dispatch_reply_f16", "DISPATCH", dispatch_fields(1, 1, flags=1)),
    ("dispatch_more", "DISPATCH", dispatch_fields(1, 2, flags=3)),
    ("result_f32", "RESULT", result_fields(3, 5)),
    ("result_f16", "RESULT", result_fields(3, 5, F16)),
    ("dispatch_sums", "DISPATCH", dispatch_fields(2, 3, flags=4)),
    ("dispatch_sums_more_f32", "DISPATCH", dispatch_fields(2, 5, dtype=F32, flags=6)),
    ("result_sums", "RESULT", sum_result_fields(6, 9, 256, [0, 8, 12, 16, 24, 32])),
    ("result_sums_of_nothing", "RESULT", sum_result_fields(1, 1, 768, [0])),
    ("result_sums_512", "RESULT", sum_result_fields(2, 31, 512, [12, 8, 0, 12])),
    ("dispatch_65535", "DISPATCH", dispatch_fields(3, 8094)),
    ("dispatch_65536", "DISPATCH", dispatch_fields(8, 7931)),
    ("dispatch_65537", "DISPATCH", dispatch_fields(5, 8029)),
    ("dispatch_1048575", "DISPATCH", dispatch_fields(2019, 65202)),
    ("dispatch_1048576", "DISPATCH", dispatch_fields(2024, 65039)),
    ("dispatch_1048577", "DISPATCH", dispatch_fields(2021, 65137)),
    ("result_65536_f16", "RESULT", result_fields(128, 256, F16)),
    ("result_1056768", "RESULT", result_fields(86, 3072)),
    ("result_8388608", "RESULT", result_fields(2048, 1024)),
    ("dispatch_sums_65536", "DISPATCH", dispatch_fields(148, 2193, flags=4)),
    ("result_sums_8388600", "RESULT", sum_result_fields(682, 4096, 3072, [32])),
]
FRAMES = Path(__file__).parent / "wire" / "frames.json"
WHOLE_BYTES = 4096  # larger frames are stored as header and hash


def described(name: str, kind: str, fields: Fields) -> Fields:
    """One entry of frames.json."""
    data = build(kind, fields)
    entry = {
        "name": name,
        "kind": kind,
        "fields": fields,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    return {**entry, "hex": data.hex()} if len(data) <= WHOLE_BYTES else {**entry, "header_hex": data[:36].hex()}


def golden_json() -> str:
    """The text of frames.json."""
    lines = [json.dumps(described(*item), ensure_ascii=True) for item in GOLDEN]
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    FRAMES.write_text(golden_json())
