"""The shader programs of KX1, each assembled from WGSL files.

Called by `gpu.device`. The page's `kernels/gpu/*.js` puts the same files together; `kernels/wgsl/README.md` says how.
Nothing is generated here, and no GPU is touched.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gguf import GGMLQuantizationType as Quant

from kvasir.errors import KernelError

SHADERS = Path(__file__).resolve().parents[1] / "wgsl"
LANES_ALLOWED = (1, 2, 4, 8, 16)
TYPE_FILES = {
    Quant.Q4_K: ("k_scales", "q4_k"),
    Quant.Q5_K: ("k_scales", "q5_k"),
    Quant.Q6_K: ("words", "q6_k"),
    Quant.Q8_0: ("words", "q8_0"),
}


class Kind(StrEnum):
    """The kinds of programs. Matrix programs exist once for each quant type."""

    UNPACK_ROWS = "unpack_rows"
    SILU_QUANTISE = "silu_quantise"
    MATVEC_1 = "matvec_1"
    MATVEC_4 = "matvec_4"
    TILED = "tiled"


PAIRS_A_TASK = {Kind.MATVEC_1: 1, Kind.MATVEC_4: 4, Kind.TILED: 32}


class Program(NamedTuple):
    """One program; `quant_type` is None if it reads no weights."""

    kind: Kind
    quant_type: Quant | None = None


ROW_PROGRAMS = (Program(Kind.UNPACK_ROWS), Program(Kind.SILU_QUANTISE))


def matrix_programs(quant_type: Quant) -> tuple[Program, ...]:
    """Return the programs that multiply with a matrix of this type."""
    return tuple(Program(kind, quant_type) for kind in PAIRS_A_TASK)


def program_text(program: Program, lanes: int, has_packed_dot: bool = True) -> str:
    """Return the WGSL of a program with entry point `main`. `lanes` invocations share a weight row in `matvec`."""
    if lanes not in LANES_ALLOWED:
        raise KernelError(f"lanes is {lanes}; it must be one of {', '.join(map(str, LANES_ALLOWED))}")
    dot = "dot_packed" if has_packed_dot else "dot_plain"
    texts = [shader_file(name) for name in (dot, *_files(program))]
    if program.kind in (Kind.MATVEC_1, Kind.MATVEC_4):
        texts.insert(0, f"const LANES = {lanes}u;\n")
    return "\n".join(texts)


def _files(program: Program) -> tuple[str, ...]:
    if program.kind is Kind.UNPACK_ROWS:
        return "activations", "unpack_rows"
    if program.kind is Kind.SILU_QUANTISE:
        return "activations", "silu", "quantise"
    if program.quant_type not in TYPE_FILES:
        raise KernelError(f"there is no {program.kind} for {program.quant_type!r}")
    width = "width_1" if program.kind is Kind.MATVEC_1 else "width_4"
    body = "tiled" if program.kind is Kind.TILED else "matvec"
    return width, "exact", "matmul", *TYPE_FILES[program.quant_type], body


@cache
def shader_file(name: str) -> str:
    """Return the text of one WGSL file. Raises KernelError, which names the folder, if it is not installed."""
    path = SHADERS / f"{name}.wgsl"
    if not path.is_file():
        raise KernelError(f"the shader file {name}.wgsl is not in {SHADERS}; install kvasir again")
    return path.read_text(encoding="utf-8")
