"""Makes the golden vectors of KX1 in tests/golden/kx1/ with the numpy oracle.

Run by hand as `python -m tests.golden.make_kx1` when a version of docs/reference/kx1.md adds vectors; no test runs it.
It never changes what a frozen version says: the files of a version stay as they were first committed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Quant

from kvasir.experts import ExpertStack, FloatRows, LayerExperts, WeightMatrix
from kvasir.kernels.api import KX1_VERSION
from kvasir.kernels.oracle.kernel import NumpyKX1Kernel
from kvasir.kernels.oracle.steps import round_output, silu_mul
from kvasir.kernels.oracle.weights import fixed_point
from kvasir.kernels.selftest_inputs import (
    WeightKind,
    adversarial_rows,
    legal_packed_rows,
    made_weights,
    plain_rows,
    words,
)

FOLDER = Path(__file__).parent / "kx1"
TYPES = (Quant.Q4_K, Quant.Q5_K, Quant.Q6_K, Quant.Q8_0)
KINDS: tuple[WeightKind, ...] = ("plain", "wild", "low", "high")
EXPERTS: tuple[tuple[tuple[Quant, Quant, Quant], WeightKind, int, int], ...] = (
    ((Quant.Q4_K, Quant.Q4_K, Quant.Q6_K), "plain", 512, 256),
    ((Quant.Q4_K, Quant.Q4_K, Quant.Q4_K), "plain", 256, 512),
    ((Quant.Q5_K, Quant.Q5_K, Quant.Q6_K), "plain", 256, 256),
    ((Quant.Q5_K, Quant.Q5_K, Quant.Q5_K), "wild", 512, 256),
    ((Quant.Q6_K, Quant.Q6_K, Quant.Q6_K), "plain", 256, 256),
    ((Quant.Q8_0, Quant.Q8_0, Quant.Q8_0), "plain", 256, 512),
    ((Quant.Q4_K, Quant.Q4_K, Quant.Q8_0), "plain", 256, 256),
    ((Quant.Q6_K, Quant.Q8_0, Quant.Q5_K), "wild", 256, 256),
    ((Quant.Q6_K, Quant.Q6_K, Quant.Q4_K), "low", 256, 256),
    ((Quant.Q5_K, Quant.Q4_K, Quant.Q8_0), "high", 256, 256),
)
FULL_EXPERTS = (EXPERTS[0][0], EXPERTS[3][0], EXPERTS[4][0], EXPERTS[5][0])
KERNEL = NumpyKX1Kernel()


class VectorFile:
    """Collects cases; arrays go into one binary file, each at a multiple of 4."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.cases: list[dict[str, Any]] = []

    def add(self, kind: str, name: str, arrays: dict[str, npt.NDArray[Any]], **facts: object) -> None:
        entries = {key: self._entry(array) for key, array in arrays.items()}
        self.cases.append({"kind": kind, "name": name, **facts, "arrays": entries})

    def _entry(self, array: npt.NDArray[Any]) -> dict[str, object]:
        offset = len(self.data)
        raw = np.ascontiguousarray(array)
        if raw.dtype == np.float32:
            raw = raw.view(np.uint32)
        raw = raw.astype(raw.dtype.newbyteorder("<"))
        self.data += raw.tobytes()
        self.data += bytes(-len(self.data) % 4)
        dtype = f"{'u' if raw.dtype.kind == 'u' else 'i'}{8 * raw.itemsize}"
        return {"offset": offset, "dtype": dtype, "shape": list(raw.shape), "sha256": sha256(raw)}

    def write(self, folder: Path = FOLDER, specification: str = "KX1", version: int = KX1_VERSION) -> None:
        header = {
            "specification": specification,
            "version": version,
            "file": "vectors.bin",
            "bytes": len(self.data),
            "sha256": hashlib.sha256(self.data).hexdigest(),
        }
        lines = ",\n".join("  " + json.dumps(case) for case in self.cases)
        head = json.dumps(header)[1:-1]
        (folder / "vectors.json").write_text(f'{{{head}, "cases": [\n{lines}\n]}}\n')
        (folder / "vectors.bin").write_bytes(self.data)


def sha256(array: npt.NDArray[Any]) -> str:
    """SHA-256 of an array's little-endian bytes, rows in order."""
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.tobytes()).hexdigest()


def rows_of(cols: int) -> FloatRows:
    """17 adversarial rows and 3 plain ones."""
    return np.concatenate([adversarial_rows(cols, cols), plain_rows(3, cols, cols + 1)])


def finite(bits: npt.NDArray[np.uint32]) -> FloatRows:
    """Bits with Inf and NaN made finite by clearing the exponent's top bit."""
    return np.where((bits >> 23) & 255 == 255, bits & 0xBFFFFFFF, bits).astype(np.uint32).view(np.float32)


def silu_inputs(n: int) -> tuple[FloatRows, FloatRows]:
    """n / 2 pairs of any finite bits, then n / 2 with a gate of 1/8 to 32 and a plain up."""
    gate, up = finite(words(900, n)), finite(words(901, n))
    gate[n // 2 :] = (plain_rows(1, n // 2, 902)[0].view(np.uint32) + np.uint32(5 << 23)).view(np.float32)
    up[n // 2 :] = plain_rows(1, n // 2, 903)[0]
    return gate, up


def made_layer(
    types: Sequence[Quant], kinds: WeightKind, d_model: int, d_ff: int, seed: int
) -> tuple[LayerExperts, list[dict[str, object]]]:
    """One expert whose matrix m has seed `seed + m`, and how to make it."""
    stacks, recipes = [], []
    for matrix, quant_type in enumerate(types):
        n_out, n_in = (d_model, d_ff) if matrix == 2 else (d_ff, d_model)
        data = made_weights(quant_type, n_out, n_in, seed + matrix, kinds)
        stacks.append(ExpertStack(quant_type, n_out, n_in, data[None]))
        recipes.append({
            "type": quant_type.name, "n_out": n_out, "n_in": n_in, "seed": seed + matrix, "kind": kinds,
            "sha256": sha256(data),
        })  # fmt: skip
    gate, up, down = stacks
    return LayerExperts(0, gate, up, down), recipes


def run_expert(layer: LayerExperts, packed: npt.NDArray[np.uint8]) -> FloatRows:
    """The outputs of the only expert for all rows."""
    numbers = np.arange(len(packed), dtype=np.int32)
    return KERNEL.load(layer).compute(packed, numbers, np.zeros_like(numbers))


def add_rows(out: VectorFile) -> None:
    out.add("words", "words of streams 0, 1 and 0xFFFFFFFF", {
        "seeds": np.array([0, 1, 0xFFFFFFFF], np.uint32),
        "words": np.stack([words(seed, 16) for seed in (0, 1, 0xFFFFFFFF)]),
    })  # fmt: skip
    for cols in (256, 512, 1024):
        rows = rows_of(cols)
        out.add("quantise", f"rows of {cols}", {"rows": rows, "packed": KERNEL.encode_rows(rows)}, cols=cols)
    legal = legal_packed_rows(512, 77)
    code, low, high = (legal[0].copy() for _ in range(3))
    code[261 + 200] = 0x80
    low[256] &= 0xF0
    high[261 + 259] &= 0x0F
    out.add("refuse", "packed rows that must be refused", {"packed": np.stack([code, low, high])}, cols=512)


def add_parts(out: VectorFile) -> None:
    halves = np.concatenate([
        np.array([0, 0x8000, 1, 0x3FF, 0x83FF, 0x400, 0x7BFF, 0xFBFF, 0x3C00, 0xBC00], np.uint16),
        words(910, 54).astype(np.uint16) & 0xBFFF,
    ])  # fmt: skip
    for weight_exp in (29, 15, 2):
        usable = halves[np.maximum((halves >> 10) & 31, 1) - 1 <= weight_exp]
        fixed = fixed_point(usable, weight_exp).astype(np.int32)
        out.add("scale", f"f16 scales under ew = {weight_exp}", {"scales": usable, "fixed": fixed}, ew=weight_exp)
    drawn = words(911, 1024).astype(np.int64)
    acc = np.concatenate([
        np.array([0, 1, -1, 0xFFFFFF, 0x1000000, 0x1000001, 0x1000002, 0x1000003, 0x1FFFFFF, -0x1FFFFFF]),
        ((drawn[0::2] << 27) ^ drawn[1::2]) >> (drawn[0::2] & 31),
        -((drawn[1::2] | 1) << 24) + (1 << 23),
    ]).astype(np.int64)  # fmt: skip
    exponent = np.resize(np.array([-184, -170, -150, -149, -126, -60, 0, 60, 80, 104, 113], np.int32), acc.shape)
    halves_of_acc = np.stack([acc & 0xFFFFFFFF, (acc >> 32) & 0xFFFFFFFF], axis=1).astype(np.uint32)
    bits = round_output(acc, exponent)
    out.add("round", "acc * 2^exponent", {"acc": halves_of_acc, "exponent": exponent, "outputs": bits})
    magnitudes = np.array([
        0, 1, 0x7FFFFF, 0x800000, 0x00FFFFFF, 0x34000000, 0x3F000000, 0x3F7FFFFF, 0x3F800000, 0x3FB8AA3B, 0x40000000,
        0x41200000, 0x41FFFFFF, 0x42000000, 0x42B00000, 0x7F000000, 0x7F7FFFFF,
    ], np.uint32)  # fmt: skip
    edges = np.concatenate([magnitudes, magnitudes | 0x80000000]).view(np.float32)
    add_silu(out, "edges", np.repeat(edges, len(edges)), np.tile(edges, len(edges)))
    add_silu(out, "drawn", *silu_inputs(3072))
    out.add("silu hash", "many", {}, n=1 << 18, sha256=sha256(silu_mul(*silu_inputs(1 << 18))))


def add_silu(out: VectorFile, name: str, gate: FloatRows, up: FloatRows) -> None:
    out.add("silu", name, {"gate": gate, "up": up, "outputs": silu_mul(gate, up)})


def add_matmuls(out: VectorFile) -> None:
    for number, quant_type in enumerate(TYPES):
        for kind in KINDS:
            seed = 1000 + 100 * number + KINDS.index(kind)
            data = made_weights(quant_type, 8, 512, seed, kind)
            matrix = KERNEL.prepare(WeightMatrix(quant_type, 8, 512, data))
            outputs = KERNEL.linear(rows_of(512), [matrix])[0]
            out.add("matmul", f"{quant_type.name} {kind}", {"weights": data, "outputs": outputs},
                    type=quant_type.name, n_out=8, n_in=512, ew=matrix.weight_exp, rows="rows of 512")  # fmt: skip
            wide = WeightMatrix(quant_type, 4, 16384, made_weights(quant_type, 4, 16384, seed + 50, kind))
            outputs = KERNEL.linear(rows_of(16384), [KERNEL.prepare(wide)])[0]
            out.add("matmul hash", f"{quant_type.name} {kind} of 16384 columns", {}, type=quant_type.name, n_out=4,
                    n_in=16384, seed=seed + 50, weights=kind, sha256=sha256(outputs))  # fmt: skip


def add_experts(out: VectorFile) -> None:
    for number, (types, kind, d_model, d_ff) in enumerate(EXPERTS):
        name = f"{' '.join(t.name for t in types)} {kind} {d_model}x{d_ff}"
        layer, recipes = made_layer(types, kind, d_model, d_ff, 3000 + 10 * number)
        packed = np.concatenate([KERNEL.encode_rows(rows_of(d_model)), legal_packed_rows(d_model, 3000 + number)])
        out.add("expert", name, {"packed": packed, "outputs": run_expert(layer, packed)},
                d_model=d_model, d_ff=d_ff, matrices=recipes, rows=f"rows of {d_model}")  # fmt: skip
    for number, types in enumerate(FULL_EXPERTS):
        name = f"{' '.join(t.name for t in types)} 3072x1024"
        layer, recipes = made_layer(types, "plain", 3072, 1024, 4000 + 10 * number)
        packed = KERNEL.encode_rows(plain_rows(4, 3072, 4003 + 10 * number))
        out.add("expert hash", name, {}, d_model=3072, d_ff=1024, matrices=recipes, n_rows=4,
                rows_seed=4003 + 10 * number, packed_sha256=sha256(packed),
                sha256=sha256(run_expert(layer, packed)))  # fmt: skip


def main() -> None:
    """Write vectors.json and vectors.bin."""
    out = VectorFile()
    add_rows(out)
    add_parts(out)
    add_matmuls(out)
    add_experts(out)
    out.write()
    print(f"{len(out.cases)} cases, {len(out.data)} bytes")


if __name__ == "__main__":
    main()
