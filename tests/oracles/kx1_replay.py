"""Builds kx1_replay.c with the KX1 sources in any way, and writes the cases that it replays.

Called by the tests of the C kernels: for other optimisation, sanitizers, and other architectures under an emulator.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvasir.experts import FloatRows
from kvasir.kernels.build import SOURCE_DIR
from kvasir.kernels.oracle.kernel import NumpyKX1Kernel
from tests.oracles.kx1_versions import Matrix, Version

MAIN = Path(__file__).with_name("kx1_replay.c")
MATMUL, SILU_MUL = 0, 1


@dataclass(frozen=True, slots=True)
class Build:
    """A way to compile: the command with common options, and each source's own options by its stem."""

    command: tuple[str, ...]
    own_flags: Mapping[str, tuple[str, ...]]


def build_program(build: Build, folder: Path) -> Path:
    """The program, from `folder` when the same sources were built there before in the same way."""
    sources = [*sorted(SOURCE_DIR.glob("kx1*.c")), MAIN]
    state = hashlib.sha256(repr(build).encode())
    for path in [*sorted(SOURCE_DIR.glob("kx1*.h")), *sources]:
        state.update(path.read_bytes())
    program = folder / f"kx1_replay-{state.hexdigest()[:16]}"
    if not program.exists():
        jobs = [(build, source, program.with_name(f"{program.name}-{source.stem}.o")) for source in sources]
        with ThreadPoolExecutor() as pool:
            objects = [str(path) for path in pool.map(lambda job: _compile(*job), jobs)]
        unfinished = program.with_suffix(".new")
        _run([*build.command, "-o", str(unfinished), *objects])
        unfinished.rename(program)
    return program


def _compile(build: Build, source: Path, target: Path) -> Path:
    own = build.own_flags.get(source.stem, ())
    options = ("-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{SOURCE_DIR}", "-c")
    _run([*build.command, *own, *options, str(source), "-o", str(target)])
    return target


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}\n{done.stderr}")


def matmul_case(matrix: Matrix, rows: FloatRows) -> bytes:
    """A mat-mul with what the scalar version makes of it."""
    scalar = Version("scalar")
    packed = NumpyKX1Kernel().encode_rows(rows)
    numbers = (MATMUL, matrix.quant_type, matrix.n_out, matrix.n_in, len(rows), matrix.exponent)
    expected = scalar.matmul(matrix, scalar.prepare(rows))
    arrays = (matrix.data, rows, packed, expected)
    return np.array(numbers, "<i8").tobytes() + b"".join(array.tobytes() for array in arrays)


def silu_case(gate: FloatRows, up: FloatRows) -> bytes:
    """A silu(gate) * up with what the scalar version makes of it."""
    arrays = (gate, up, Version("scalar").silu_mul(gate, up))
    return np.array((SILU_MUL, gate.size), "<i8").tobytes() + b"".join(array.tobytes() for array in arrays)


def write_cases(path: Path, cases: Iterable[bytes]) -> None:
    """The file that the program reads."""
    listed = list(cases)
    path.write_bytes(np.array(len(listed), "<i8").tobytes() + b"".join(listed))
