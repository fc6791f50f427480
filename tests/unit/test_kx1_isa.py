"""Every version of KX1 in C gives the scalar version's bits: each instruction set, optimisation and architecture.

The scalar version itself is held to the specification's vectors by the contract tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvasir.errors import ConfigError
from kvasir.kernels import native
from kvasir.kernels.build import SOURCE_DIR, flag_sets, system_compiler
from tests.oracles.kx1_replay import Build, build_program, matmul_case, silu_case, write_cases
from tests.oracles.kx1_versions import (
    BLOCK_BYTES,
    QUANT_TYPES,
    WEIGHT_KINDS,
    Version,
    all_matrices,
    hard_rows,
    made_matrix,
    silu_inputs,
    version_names,
)

N_OUT = 51  # not a multiple of any version's lanes
TOKEN_COUNTS = (*range(1, 14), 64)
USED_BLOCK_BYTES = 488  # what follows in a prepared block is padding
ASAN_CALLS = "--param=asan-instrumentation-with-call-threshold=0"  # inlined checks take minutes to compile
QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
VECTOR_VERSIONS = [name for name in version_names() if name != "scalar"]


def as_bits(rows: np.ndarray) -> np.ndarray:
    return rows.view(np.uint32)


@pytest.mark.parametrize("cols", [256, 512, 768, 1024, 3072])
@pytest.mark.parametrize("name", VECTOR_VERSIONS)
def test_matmul_equals_scalar_for_every_type_and_token_count(name: str, cols: int) -> None:
    version, scalar = Version(name), Version("scalar")
    rows = hard_rows(64, cols, seed=cols)
    prepared = {n: version.prepare(rows[-n:] if n > 13 else rows[2 * n - 2 : 3 * n - 2]) for n in TOKEN_COUNTS}
    reference = {n: scalar.prepare(rows[-n:] if n > 13 else rows[2 * n - 2 : 3 * n - 2]) for n in TOKEN_COUNTS}
    for matrix in all_matrices(N_OUT, cols, seed=7 * cols):
        for n in TOKEN_COUNTS:
            found, expected = version.matmul(matrix, prepared[n]), scalar.matmul(matrix, reference[n])
            assert np.array_equal(as_bits(found), as_bits(expected)), (matrix.quant_type, matrix.exponent, n)


@pytest.mark.parametrize("name", VECTOR_VERSIONS)
def test_more_tokens_than_a_chunk_and_the_widest_row(name: str) -> None:
    version, scalar = Version(name), Version("scalar")
    for cols, n, n_out in ((256, 257, 16), (16384, 3, 16), (16384, 1, 8)):
        rows = hard_rows(n, cols, seed=n)
        for quant_type in QUANT_TYPES:
            for kind in WEIGHT_KINDS:
                matrix = made_matrix(quant_type, n_out, cols, n, kind)
                found = version.matmul(matrix, version.prepare(rows))
                assert np.array_equal(as_bits(found), as_bits(scalar.matmul(matrix, scalar.prepare(rows))))


@pytest.mark.parametrize("name", version_names())
def test_a_range_of_matrix_rows_is_a_part_of_the_whole(name: str) -> None:
    version = Version(name)
    for matrix in all_matrices(N_OUT, 512, seed=3):
        for n in (1, 2, 5):
            x = version.prepare(hard_rows(n, 512, seed=n))
            whole, part = version.matmul(matrix, x), version.matmul(matrix, x, 5, 44)
            assert np.array_equal(as_bits(part[:, 5:44]), as_bits(whole[:, 5:44]))
            assert np.isnan(part[:, :5]).all() and np.isnan(part[:, 44:]).all(), "wrote outside its rows"


@pytest.mark.parametrize("name", version_names())
def test_a_row_does_not_depend_on_the_others(name: str) -> None:
    version = Version(name)
    rows = hard_rows(24, 768, seed=1)
    together = version.prepare(rows)
    for matrix in all_matrices(32, 768, seed=4):
        batch = version.matmul(matrix, together)
        for t in (0, 7, 13, 23):
            alone = version.matmul(matrix, version.prepare(rows[t : t + 1]))
            assert np.array_equal(as_bits(alone[0]), as_bits(batch[t]))


@pytest.mark.parametrize("name", VECTOR_VERSIONS)
def test_quantised_blocks_equal_scalar(name: str) -> None:
    rows = hard_rows(200, 1024, seed=2)
    found, expected = Version(name).prepare(rows), Version("scalar").prepare(rows)
    assert BLOCK_BYTES > USED_BLOCK_BYTES
    assert np.array_equal(found.blocks[..., :USED_BLOCK_BYTES], expected.blocks[..., :USED_BLOCK_BYTES])
    assert np.array_equal(found.exponents, expected.exponents)


@pytest.mark.parametrize("name", VECTOR_VERSIONS)
def test_silu_equals_scalar(name: str) -> None:
    gate, up = silu_inputs(seed=5)
    version, scalar = Version(name), Version("scalar")
    assert np.array_equal(as_bits(version.silu_mul(gate, up)), as_bits(scalar.silu_mul(gate, up)))
    for n in range(1, 40):  # lengths that do not fill the lanes
        assert np.array_equal(as_bits(version.silu_mul(gate[:n], up[:n])), as_bits(scalar.silu_mul(gate[:n], up[:n])))


def test_the_table_names_versions_and_refuses_others() -> None:
    library = native.load()
    assert library.isa_names[-1] == "scalar"
    assert [Version(name).name for name in library.isa_names] == list(library.isa_names)
    with pytest.raises(ConfigError, match="sse9"):
        library.isa("sse9")


@pytest.fixture(scope="module")
def build_folder(request: pytest.FixtureRequest) -> Path:
    """Programs stay here between runs: they are named by all that they depend on."""
    return request.config.cache.mkdir("kx1_replay")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kx1_cases") / "cases"
    matmuls = [
        matmul_case(matrix, hard_rows(n, cols, seed=n))
        for n_out, cols, n in ((35, 256, 13), (16, 1024, 4), (24, 768, 9))
        for matrix in all_matrices(n_out, cols, seed=n)
    ]
    gate, up = silu_inputs(seed=6)
    write_cases(path, [*matmuls, silu_case(gate[::11], up[::11])])
    return path


def replay(command: list[str], cases: Path) -> list[str]:
    """Run the program; the versions that it found equal."""
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([*command, str(cases)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.partition(":")[2].split()


def system_build(*options: str) -> Build:
    compiler = system_compiler()
    if compiler is None:
        pytest.skip("no C compiler in PATH: the kernels were built by ziglang, which has no sanitizers")
    own_flags = {source.stem: flag_sets(source)[0] for source in SOURCE_DIR.glob("kx1*.c") if flag_sets(source)}
    return Build((*compiler.command, *options), own_flags)


def test_fast_math_and_guard_pages(build_folder: Path, cases: Path) -> None:
    program = build_program(system_build("-Ofast"), build_folder)
    assert replay([str(program)], cases) == list(version_names())


def test_address_and_undefined_behaviour_sanitizers(build_folder: Path, cases: Path) -> None:
    checks = ("-fsanitize=address,undefined", "-fno-sanitize-recover", ASAN_CALLS)
    program = build_program(system_build("-O1", "-g0", *checks), build_folder)
    assert replay([str(program)], cases) == list(version_names())


@pytest.mark.skipif(QEMU is None, reason="qemu-aarch64-static is not installed: the aarch64 versions were not run")
def test_aarch64_with_and_without_dot_products(build_folder: Path, cases: Path) -> None:
    zig = (sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", "-O2", "-g0")
    program = build_program(Build(zig, {"kx1_dotprod": ("-mcpu=generic+dotprod",)}), build_folder)
    assert replay([str(QEMU), "-cpu", "max", str(program)], cases) == ["dotprod", "neon", "scalar"]
    assert replay([str(QEMU), "-cpu", "cortex-a53", str(program)], cases) == ["neon", "scalar"]
