"""The float row operations built by other compilers, with other optimisation, and for aarch64: the same bits.

A small C program prints a digest of each operation's result; every build of it must print the same lines.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvasir.kernels.build import SOURCE_DIR, find_compiler

PROGRAM = Path(__file__).resolve().parents[1] / "oracles" / "rowops_digest.c"
SOURCES = [
    SOURCE_DIR / f"{name}.c"
    for name in (
        "rowops",
        "rowops_heads",
        "rowops_route",
        "rowops_state",
        "rowops_baseline",
        "rowops_avx2",
        "rowops_avx512",
        "pool",
        "scratch",
    )
]
QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
ZIG_AARCH64 = (sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", "-static", "-g0", "-O2")


def digests(compiler: Sequence[str], folder: Path, runner: Sequence[str] = ()) -> list[str]:
    """What the program prints when built by this compiler; runner is what starts it."""
    program = folder / "digest"
    flags = ["-std=c11", "-ffp-contract=off", f"-I{SOURCE_DIR}"]
    command = [*compiler, *flags, str(PROGRAM), *map(str, SOURCES), "-lpthread", "-lm", "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    done = subprocess.run([*runner, str(program)], check=True, capture_output=True, text=True, timeout=120)
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return digests([*find_compiler().command, "-O3"], tmp_path_factory.mktemp("plain"))


def test_every_operation_is_covered(wanted: list[str]) -> None:
    assert len(wanted) == 23


@pytest.mark.parametrize("flags", [["-O0"], ["-O3", "-fno-math-errno", "-funroll-loops"], ["-O2"]])
def test_optimisation_changes_nothing(wanted: list[str], flags: list[str], tmp_path: Path) -> None:
    assert digests([*find_compiler().command, *flags], tmp_path) == wanted


@pytest.mark.skipif(QEMU is None, reason="qemu-aarch64-static is not installed: the aarch64 build was not run")
def test_aarch64_gives_the_same_bits(wanted: list[str], tmp_path: Path) -> None:
    assert digests(ZIG_AARCH64, tmp_path, [str(QEMU)]) == wanted
