"""What a GPU is told: tables that name every pair once, and dispatches that no watchdog minds. No device is needed."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quant

from kvasir.errors import KernelError
from kvasir.kernels.gpu import shaders as gpu_shaders
from kvasir.kernels.gpu.shaders import PAIRS_A_TASK, Kind, Program, matrix_programs, program_text
from kvasir.kernels.gpu.space import ALIGNMENT, ArenaSpace, Piece
from kvasir.kernels.gpu.tables import (
    INVOCATIONS,
    MOST_WORK,
    TILE_ROWS,
    CallTables,
    Dispatch,
    PlacedExpert,
    PlacedMatrix,
    Tunables,
    call_tables,
    matrix_dispatches,
    row_dispatch,
    split_pairs,
    submissions,
)

D_MODEL, D_FF = 512, 256
TUNABLES = Tunables()


def expert(number: int, types: tuple[Quant, Quant, Quant] = (Quant.Q4_K, Quant.Q4_K, Quant.Q6_K)) -> PlacedExpert:
    places = [PlacedMatrix(kind, 4096 * number + 256 * i, number + i) for i, kind in enumerate(types)]
    return PlacedExpert(number % 2, *places)


def tables_of(counts: list[int], tunables: Tunables = TUNABLES) -> CallTables:
    n = sum(counts)
    return call_tables(
        D_MODEL, D_FF, [expert(i) for i in range(len(counts))], counts, np.arange(n) // 2, np.arange(n)[::-1], tunables
    )


def done_by(tables: CallTables, stage: list[Dispatch]) -> Counter[tuple[int, int, int]]:
    """How often (offset, column, pair entry) is computed, over the dispatches of a stage."""
    done: Counter[tuple[int, int, int]] = Counter()
    for dispatch in stage:
        first = dispatch.shape[4]
        for task in tables.tasks[first : first + dispatch.groups[1]]:
            assert task[3] <= PAIRS_A_TASK[dispatch.program.kind]
            done.update((int(task[0]), int(task[4]), int(task[2] + i)) for i in range(task[3]))
    return done


@pytest.mark.parametrize("tiled_from", [1, 16, 1000])
def test_every_pair_meets_its_three_matrices_once(tiled_from: int) -> None:
    counts = [1, 4, 5, 16, 33]
    tables = tables_of(counts, Tunables(tiled_from=tiled_from))
    slot_experts = np.repeat(np.arange(len(counts)), counts).tolist()
    n = len(slot_experts)
    inner = [(expert(e).gate.offset, 0, s) for s, e in enumerate(slot_experts)]
    inner += [(expert(e).up.offset, D_FF, s) for s, e in enumerate(slot_experts)]
    outer = [(expert(e).down.offset, 0, n + s) for s, e in enumerate(slot_experts)]
    assert done_by(tables, tables.first_stage) == Counter(inner)
    assert done_by(tables, tables.second_stage) == Counter(outer)


def test_pairs_lead_from_rows_to_slots_and_from_slots_to_the_callers_order() -> None:
    tables = tables_of([2, 3])
    assert tables.pairs.tolist() == [[0, 0], [0, 1], [1, 2], [1, 3], [2, 4], [0, 4], [1, 3], [2, 2], [3, 1], [4, 0]]


def test_a_dispatch_is_of_one_arena_and_one_type() -> None:
    tables = tables_of([2, 2, 2])
    for stage, n_out in ((tables.first_stage, D_FF), (tables.second_stage, D_MODEL)):
        assert {d.arena for d in stage} == {0, 1}
        for dispatch in stage:
            assert dispatch.shape[1] == n_out
            assert dispatch.groups[0] == n_out // (INVOCATIONS // 4)
    assert {d.program.quant_type for d in tables.second_stage} == {Quant.Q6_K}


def test_few_pairs_are_matvec_and_many_are_tiles() -> None:
    assert list(split_pairs(1, 16)) == [(Kind.MATVEC_1, 0, 1)]
    assert list(split_pairs(5, 16)) == [(Kind.MATVEC_4, 0, 4), (Kind.MATVEC_1, 4, 1)]
    assert list(split_pairs(35, 16)) == [(Kind.TILED, 0, 32), (Kind.TILED, 32, 3)]


@pytest.mark.parametrize("kind", PAIRS_A_TASK)
@pytest.mark.parametrize("widths", [(1024, 3072), (3072, 1024), (16384, 16384)])
def test_no_dispatch_works_for_long(kind: Kind, widths: tuple[int, int]) -> None:
    n_out, n_in = widths
    dispatches = matrix_dispatches(Program(kind, Quant.Q8_0), 0, (n_out, n_in, n_out), 7, 100, lanes=4)
    done: Counter[tuple[int, int]] = Counter()
    rows_a_group = TILE_ROWS if kind is Kind.TILED else INVOCATIONS // 4
    for dispatch in dispatches:
        assert dispatch.work <= MOST_WORK
        assert max(dispatch.groups) <= 65_535
        first_task, first_row = dispatch.shape[4:6]
        last_row = min(n_out, first_row + dispatch.groups[0] * rows_a_group)
        tasks = range(first_task, first_task + dispatch.groups[1])
        done.update((task, row) for task in tasks for row in range(first_row, last_row, TILE_ROWS))
    assert set(done) == {(task, row) for task in range(7, 107) for row in range(0, n_out, TILE_ROWS)}
    assert set(done.values()) == {1}


def test_submissions_are_cut_where_their_work_is_too_much() -> None:
    def step(work: int) -> Dispatch:
        return Dispatch(Program(Kind.TILED, Quant.Q4_K), 0, (0,) * 8, (1, 1), work)

    steps = [
        step(MOST_WORK // 2),
        step(MOST_WORK // 2),
        step(1),
        step(MOST_WORK),
        row_dispatch(Program(Kind.UNPACK_ROWS), 1, 1),
    ]
    assert [len(batch) for batch in submissions(steps)] == [2, 1, 2]
    assert [one for batch in submissions(steps) for one in batch] == steps
    assert list(submissions([])) == []


def test_programs_are_put_together_from_files() -> None:
    texts = {program_text(program, 4) for kind in gpu_shaders.TYPE_FILES for program in matrix_programs(kind)}
    assert len(texts) == 12
    assert all(text.count("fn main(") == 1 and "f32" not in _code(text) for text in texts)
    assert "const LANES = 8u;" in program_text(Program(Kind.MATVEC_1, Quant.Q8_0), 8)
    with pytest.raises(KernelError, match="lanes is 3"):
        program_text(Program(Kind.MATVEC_1, Quant.Q8_0), 3)
    with pytest.raises(KernelError, match="no tiled"):
        program_text(Program(Kind.TILED, Quant.F16), 4)
    with pytest.raises(KernelError, match="reads no matrix"):
        matrix_dispatches(Program(Kind.UNPACK_ROWS), 0, (256, 256, 256), 0, 1, 4)


def _code(text: str) -> str:
    """A shader without its comments."""
    return "\n".join(line.partition("//")[0] for line in text.splitlines())


def test_a_missing_shader_file_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelError, match=r"nonsense\.wgsl is not in .*wgsl"):
        gpu_shaders.shader_file("nonsense")


def test_arena_space_never_gives_a_byte_twice() -> None:
    rng = random.Random(5)
    space = ArenaSpace()
    space.add_arena(64 * ALIGNMENT)
    space.add_arena(64 * ALIGNMENT)
    held: list[Piece] = []
    for _ in range(2000):
        if held and rng.random() < 0.5:
            space.give_back(held.pop(rng.randrange(len(held))))
        elif piece := space.take(rng.randint(1, 12 * ALIGNMENT)):
            held.append(piece)
        used = {(p.arena, byte) for p in held for byte in range(p.offset, p.offset + p.n_bytes, ALIGNMENT)}
        assert len(used) * ALIGNMENT == sum(p.n_bytes for p in held)
        assert space.free_bytes == 128 * ALIGNMENT - len(used) * ALIGNMENT
        assert all(p.offset % ALIGNMENT == 0 and p.offset + p.n_bytes <= 64 * ALIGNMENT for p in held)
    for piece in held:
        space.give_back(piece)
    assert space.take(64 * ALIGNMENT) and space.take(64 * ALIGNMENT), "free neighbours were not joined"
    assert space.take(1) is None
