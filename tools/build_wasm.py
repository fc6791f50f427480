"""Builds KX1 as WebAssembly: `python -m tools.build_wasm` writes frontend/static/kvasir/kernels/wasm/.

Run by hand when csrc/ changes; the files are in the repository, so that neither a server nor a browser needs a
compiler. It uses the compiler of the `ziglang` wheel alone, so that everyone builds with the same one.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE_DIR = ROOT / "kvasir" / "kernels" / "csrc"
WASM_DIR = ROOT / "frontend" / "static" / "kvasir" / "kernels" / "wasm"
RECORD = "build.json"

SOURCES = (
    "kx1.c", "kx1_rows.c", "kx1_scalar.c", "kx1_avx2.c", "kx1_avx512.c", "kx1_neon.c", "kx1_dotprod.c",
    "wasm/kx1_simd128.c", "wasm/kx1_wasm.c",
)  # fmt: skip
COMPILER = (sys.executable, "-m", "ziglang", "cc")
# Without the two passes, headers are decoded by scalar code, and addresses keep the constant part that engines fold
# into loads: together worth a fifth of the time.
FLAGS = (
    "-target", "wasm32-wasi", "-mexec-model=reactor", "-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno",
    "-Wall", "-Wextra", "-fno-slp-vectorize", "-mllvm", "-disable-lsr",
    "-Wl,--strip-all", "-Wl,-z,stack-size=262144",
)  # fmt: skip
# Name of a build, and its own flags: see csrc/wasm/kx1_lanes_simd128.h.
BUILDS = {
    "kx1_relaxed16": ("-msimd128", "-mrelaxed-simd", "-DKX1_WASM_DOTS=16"),
    "kx1_relaxed32": ("-msimd128", "-mrelaxed-simd", "-DKX1_WASM_DOTS=32"),
    "kx1_simd128": ("-msimd128", "-DKX1_WASM_DOTS=0"),
}


class BuildError(Exception):
    """There is no compiler, or it failed."""


def source_digest() -> str:
    """SHA-256 over the sources, all headers that they may include, and the flags."""
    state = hashlib.sha256(repr((SOURCES, FLAGS, BUILDS)).encode())
    headers = [*SOURCE_DIR.glob("kx1*.h"), *SOURCE_DIR.glob("wasm/*.h")]
    for path in sorted([*headers, *(SOURCE_DIR / name for name in SOURCES)]):
        state.update(f"{path.relative_to(SOURCE_DIR).as_posix()} {path.stat().st_size}\n".encode())
        state.update(path.read_bytes())
    return state.hexdigest()


def build_one(name: str, folder: Path) -> Path:
    """Build one of BUILDS into `folder` and return its path. Raises BuildError."""
    if importlib.util.find_spec("ziglang") is None:
        raise BuildError("the compiler is not there: pip install ziglang")
    target = folder / f"{name}.wasm"
    command = [*COMPILER, *FLAGS, *BUILDS[name], "-o", str(target), *SOURCES]
    done = subprocess.run(
        command, cwd=SOURCE_DIR, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BuildError(f"the compiler failed: {shlex.join(command)}\n{done.stderr.strip()}")
    target.chmod(0o644)
    return target


def build_all(folder: Path) -> list[Path]:
    """Build all of BUILDS into `folder`, with a record of what they were made from. Raises BuildError."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as builders:
        made = list(builders.map(lambda name: build_one(name, folder), BUILDS))
    record = {
        "sources": source_digest(),
        "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made},
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: build in place, and say what was made."""
    parser = argparse.ArgumentParser(prog="python -m tools.build_wasm", description=main.__doc__)
    parser.add_argument("--folder", type=Path, default=WASM_DIR, help="where to write (default: the frontend's)")
    options = parser.parse_args(arguments)
    try:
        made = build_all(options.folder)
    except BuildError as error:
        sys.stderr.write(f"build_wasm: {error}\n")
        return 1
    for path in made:
        sys.stdout.write(f"{path} {path.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
