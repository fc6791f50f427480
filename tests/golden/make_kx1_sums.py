"""Makes the golden vectors of KX1's sums (step 7) in tests/golden/kx1_sums/ with the numpy oracle.

Run by hand as `python -m tests.golden.make_kx1_sums` when a new version of the sums adds vectors; no test runs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvasir.kernels.oracle import sums as sums_oracle
from kvasir.kernels.selftest_inputs import words
from tests.golden.make_kx1 import VectorFile, finite

FOLDER = Path(__file__).parent / "kx1_sums"
VERSION = 1
EDGES = (
    0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F000000,
    0xBF000000, 0x3EFFFFFF, 0x3F000001, 0x3FC00000, 0xBFC00000, 0x4C000000, 0x4BFFFFFF, 0xCC000000, 0x4C000001,
)  # fmt: skip


def add_case(out: VectorFile, name: str, seed: int, n_rows: int, pairs_of_row: int, d: int, spread: int) -> None:
    """Outputs with exponent fields of 127 - spread to 127 + spread, the first values being edges."""
    n_pairs = n_rows * pairs_of_row
    raw = words(seed, n_pairs * d).reshape(n_pairs, d)
    field = 127 - spread + (raw >> 8 & 0xFF) % np.uint32(2 * spread + 1)
    outputs = (raw & np.uint32(0x807FFFFF)) | (field << np.uint32(23)).astype(np.uint32)
    outputs[:, : len(EDGES)] = EDGES
    weight_words = words(seed + 1, n_pairs)
    weights = (weight_words & np.uint32(0x7FFFFF)) | ((118 + weight_words % np.uint32(12)) << np.uint32(23))
    weights = weights.astype(np.uint32)
    weights[: min(4, n_pairs)] = [0, 0x3F800000, 0xBF000000, 0x00000001][: min(4, n_pairs)]
    exponents = (words(seed + 2, n_rows) % np.uint32(24)).astype(np.int32) - 12
    pair_rows = np.repeat(np.arange(n_rows, dtype=np.int32), pairs_of_row)
    values, factors = finite(outputs), weights.view(np.float32)
    sums = sums_oracle.add(values, factors, pair_rows, exponents, n_rows)
    packed = np.frombuffer(sums_oracle.pack(sums), np.uint8)
    arrays: dict[str, npt.NDArray[Any]] = {
        "outputs": values, "weights": factors, "pair_rows": pair_rows, "exponents": exponents, "sums": sums,
        "packed": packed, "values": sums_oracle.to_float(sums, exponents),
    }  # fmt: skip
    out.add("sums", name, arrays, n_rows=n_rows, n_pairs=n_pairs, d=d)


def add_widths(out: VectorFile) -> None:
    """A block for each side of each width's limits."""
    limits = [0, 1, -1, 127, -128, 128, -129, 2047, -2048, 2048, -2049, 32767, -32768, 32768, -32769]
    limits += [(1 << 23) - 1, -(1 << 23), 1 << 23, -(1 << 23) - 1, (1 << 31) - 1, -(1 << 31)]
    sums = np.zeros((1, 256 * len(limits)), np.int32)
    for number, value in enumerate(limits):
        sums[0, 256 * number + 11 * number % 256] = value
    packed = np.frombuffer(sums_oracle.pack(sums), np.uint8)
    exponents = np.array([-20], np.int32)
    values = sums_oracle.to_float(sums, exponents)
    out.add("packed", "each side of each width", {"sums": sums, "packed": packed, "exponents": exponents,
            "values": values}, n_rows=1, d=sums.shape[1])  # fmt: skip


def add_refused(out: VectorFile) -> None:
    """Bytes of one row of 256 values that nobody packs."""
    wrong = {
        "a width that is wider than needed": bytes([16]) + bytes(512),
        "a width that does not exist": bytes([7]) + bytes(224),
        "an end within a block": bytes([8]) + bytes([1]) * 255,
        "no byte": b"",
        "a byte behind the last block": bytes([0, 0]),
    }
    for name, data in wrong.items():
        out.add("refuse", name, {"packed": np.frombuffer(data, np.uint8)}, n_rows=1, d=256)


def main() -> None:
    """Write vectors.json and vectors.bin."""
    out = VectorFile()
    add_case(out, "one pair a row", 7100, 4, 1, 256, 6)
    add_case(out, "eight pairs a row", 7200, 3, 8, 512, 4)
    add_case(out, "31 pairs a row", 7300, 1, 31, 256, 3)
    add_case(out, "sizes far apart", 7400, 2, 4, 256, 60)
    add_widths(out)
    add_refused(out)
    FOLDER.mkdir(exist_ok=True)
    out.write(FOLDER, "KX1 sums", VERSION)
    print(f"{len(out.cases)} cases, {len(out.data)} bytes")


if __name__ == "__main__":
    main()
