"""The tables of one GPU call: tasks, pairs and dispatches, from placed experts and sorted pairs.

Called by `gpu.kernel` and `gpu.call`. Pure functions; `kernels/wgsl/README.md` defines the layout. No choice made here
can change a bit of a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Quant

from kvasir.errors import KernelError
from kvasir.experts import row_bytes
from kvasir.kernels.gpu.shaders import PAIRS_A_TASK, Kind, Program

U32 = npt.NDArray[np.uint32]

BLOCK = 256
TILE_ROWS = 32
INVOCATIONS = 64
MOST_WORK = 1 << 31  # multiplications of one submission: some milliseconds on most GPUs, far below any watchdog's limit
TASK_WORDS = 8
SHAPE_WORDS = 8


@dataclass(frozen=True, slots=True)
class Tunables:
    """Settings that a device is fast with. No value changes a bit."""

    lanes: int = 4
    tiled_from: int = 16  # pairs of one expert in a call


@dataclass(frozen=True, slots=True)
class PlacedMatrix:
    """One matrix of an expert in its arena."""

    quant_type: Quant
    offset: int  # bytes into the arena, a multiple of 16
    weight_exponent: int  # ew


@dataclass(frozen=True, slots=True)
class PlacedExpert:
    """The three matrices of an expert; all in one arena."""

    arena: int
    gate: PlacedMatrix
    up: PlacedMatrix
    down: PlacedMatrix


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One dispatch: a program over consecutive tasks of one arena."""

    program: Program
    arena: int
    shape: tuple[int, ...]  # SHAPE_WORDS numbers
    groups: tuple[int, int]  # workgroups in x and y
    work: int  # multiplications


@dataclass(frozen=True, slots=True, eq=False)
class CallTables:
    """Everything that a call needs except rows and weights."""

    tasks: U32  # [n_tasks, TASK_WORDS]
    pairs: U32  # [2 n_pairs, 2]
    first_stage: list[Dispatch]  # gate and up
    second_stage: list[Dispatch]  # down


@dataclass(frozen=True, slots=True)
class _Use:
    """A matrix and the pairs that need it."""

    matrix: PlacedMatrix
    arena: int
    first_pair: int
    n_pairs: int
    column: int


def call_tables(
    d_model: int,
    d_ff: int,
    experts: Sequence[PlacedExpert],
    counts: Sequence[int],
    slot_rows: npt.NDArray[np.integer],
    slot_pairs: npt.NDArray[np.integer],
    tunables: Tunables,
) -> CallTables:
    """Make the tables for pairs sorted by expert: `counts[i]` consecutive slots belong to `experts[i]`.

    `slot_rows` and `slot_pairs` [n_pairs] are each slot's row among the uploaded ones and its place in the outputs.
    """
    n_pairs = len(slot_rows)
    slots = np.arange(n_pairs)
    pairs = np.stack([np.concatenate([slot_rows, slots]), np.concatenate([slots, slot_pairs])], axis=1)
    first_slots = np.cumsum([0, *counts])
    inner, outer = [], []
    for expert, first, count in zip(experts, first_slots, counts, strict=False):
        slot = int(first)
        inner.append(_Use(expert.gate, expert.arena, slot, count, 0))
        inner.append(_Use(expert.up, expert.arena, slot, count, d_ff))
        outer.append(_Use(expert.down, expert.arena, n_pairs + slot, count, 0))
    tasks: list[tuple[int, ...]] = []
    first_stage = _stage(inner, (d_ff, d_model, 2 * d_ff), tasks, tunables)
    second_stage = _stage(outer, (d_model, d_ff, d_model), tasks, tunables)
    table = np.array(tasks, np.uint32).reshape(-1, TASK_WORDS)
    return CallTables(table, pairs.astype(np.uint32), first_stage, second_stage)


def _stage(
    uses: Iterable[_Use], widths: tuple[int, int, int], tasks: list[tuple[int, ...]], tunables: Tunables
) -> list[Dispatch]:
    """Make the dispatches for matrices of one shape, and append their tasks to `tasks`."""
    groups: dict[tuple[int, Program], list[tuple[int, ...]]] = {}
    for use in uses:
        for kind, first, count in split_pairs(use.n_pairs, tunables.tiled_from):
            task = (use.matrix.offset, use.matrix.weight_exponent, use.first_pair + first, count, use.column, 0, 0, 0)
            groups.setdefault((use.arena, Program(kind, use.matrix.quant_type)), []).append(task)
    dispatches = []
    for (arena, program), members in groups.items():
        dispatches += matrix_dispatches(program, arena, widths, len(tasks), len(members), tunables.lanes)
        tasks += members
    return dispatches


def split_pairs(n_pairs: int, tiled_from: int) -> Iterator[tuple[Kind, int, int]]:
    """Yield the tasks for the pairs of one matrix: (kind, first pair, pairs)."""
    kind = Kind.TILED if n_pairs >= tiled_from else Kind.MATVEC_4
    width = PAIRS_A_TASK[kind]
    for first in range(0, n_pairs, width):
        count = min(width, n_pairs - first)
        yield (Kind.MATVEC_1 if count == 1 else kind), first, count


def matrix_dispatches(
    program: Program, arena: int, widths: tuple[int, int, int], first_task: int, n_tasks: int, lanes: int
) -> list[Dispatch]:
    """Return one or more dispatches for tasks of matrices of `widths` (n_out, n_in, words of an output row).

    Each has at most about MOST_WORK multiplications, so that no watchdog resets the device.
    """
    if program.quant_type is None:
        raise KernelError(f"{program.kind} reads no matrix")
    n_out, n_in, out_stride = widths
    task_row_work = n_in * PAIRS_A_TASK[program.kind]
    n_rows = min(n_out, max(TILE_ROWS, MOST_WORK // task_row_work // TILE_ROWS * TILE_ROWS))
    at_once = max(1, MOST_WORK // (task_row_work * n_rows))
    rows_a_group = TILE_ROWS if program.kind is Kind.TILED else INVOCATIONS // lanes
    dispatches = []
    for task in range(0, n_tasks, at_once):
        n = min(at_once, n_tasks - task)
        for row in range(0, n_out, n_rows):
            rows = min(n_rows, n_out - row)
            shape = (n_in // BLOCK, n_out, row_bytes(program.quant_type, n_in), out_stride, first_task + task, row)
            groups = (-(-rows // rows_a_group), n)
            dispatches.append(Dispatch(program, arena, (*shape, 0, 0), groups, task_row_work * rows * n))
    return dispatches


def submissions(steps: Iterable[Dispatch]) -> Iterator[list[Dispatch]]:
    """Yield the dispatches in order, in submissions of at most MOST_WORK."""
    batch: list[Dispatch] = []
    work = 0
    for step in steps:
        if batch and work + step.work > MOST_WORK:
            yield batch
            batch, work = [], 0
        batch.append(step)
        work += step.work
    if batch:
        yield batch


def row_dispatch(program: Program, n_blocks: int, n_rows: int) -> Dispatch:
    """Return a dispatch of `unpack_rows` or `silu_quantise` for rows of `n_blocks` blocks."""
    return Dispatch(program, -1, (n_blocks, *[0] * (SHAPE_WORDS - 1)), (n_rows, 1), 0)
