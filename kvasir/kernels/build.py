"""The build of `csrc/*.c` into the shared library that `native` loads.

Run as `python -m kvasir.kernels.build`, and by the packaging backend while `pip` installs. It uses the system's C
compiler, else the one in the `ziglang` wheel. It needs only the standard library, never downloads anything, and
replaces the library by a rename, so that a running process keeps the file that it has open.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kvasir.errors import KernelError

SOURCE_DIR = Path(__file__).parent / "csrc"
NATIVE_DIR = Path(__file__).parent / "_native"
LIBRARY_NAME = {"darwin": "libkvasir.dylib", "win32": "kvasir.dll"}.get(sys.platform, "libkvasir.so")

NEXT_STEP = "install a C compiler (gcc or clang) or `pip install ziglang`, then run `python -m kvasir.kernels.build`"
COMMON_FLAGS = (
    "-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra",
)  # fmt: skip

# A source whose name ends in one of these is one version of its functions, chosen at run time by the CPU's features. It
# is compiled with the first of these sets of flags that the compiler accepts (the second is zig's spelling). On another
# machine, or if no set is accepted, it is compiled without them and gives an empty entry.
X86 = ("x86_64", "amd64")
ARM64 = ("aarch64", "arm64")
VERSION_FLAGS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]] = {
    "_avx2": (X86, (("-mavx2", "-mtune=haswell"),)),
    "_avx512": (
        X86,
        tuple(
            (level, "-mavx512vnni", "-mprefer-vector-width=512") for level in ("-march=x86-64-v4", "-march=x86_64_v4")
        ),
    ),
    "_dotprod": (ARM64, (("-march=armv8.2-a+dotprod",), ("-mcpu=baseline+dotprod",))),
}
ZIG = (sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline")  # without it zig compiles for this very CPU
SYSTEM_COMPILERS = ("cc", "gcc", "clang")


@dataclass(frozen=True, slots=True)
class Compiler:
    """A command that takes gcc's options."""

    command: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(self.command)


def system_compiler() -> Compiler | None:
    """Return the compiler that `CC` names, else cc, gcc or clang in PATH, or None."""
    named = os.environ.get("CC", "").strip()
    if named:
        command = tuple(shlex.split(named))
        return Compiler(command) if shutil.which(command[0]) else None
    for name in SYSTEM_COMPILERS:
        if shutil.which(name):
            return Compiler((name,))
    return None


def find_compiler(wanted: str | None = None) -> Compiler:
    """Return the compiler `wanted`, else the system's, else ziglang's. Raises KernelError with the next step."""
    if wanted:
        command = tuple(shlex.split(wanted))
        if not shutil.which(command[0]):
            raise KernelError(f"the compiler {command[0]!r} is not in PATH")
        return Compiler(command)
    found = system_compiler()
    if found:
        return found
    if importlib.util.find_spec("ziglang") is not None:
        return Compiler(ZIG)
    raise KernelError(f"no C compiler was found (CC, {', '.join(SYSTEM_COMPILERS)}, ziglang): {NEXT_STEP}")


def flag_sets(source: Path) -> tuple[tuple[str, ...], ...]:
    """Return the sets of extra flags for one source file on this machine, best first."""
    for ending, (machines, sets) in VERSION_FLAGS.items():
        if source.stem.endswith(ending) and platform.machine().lower() in machines:
            return sets
    return ()


def _digest(parts: Sequence[bytes]) -> str:
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def _object_digests(source_dir: Path, compiler: Compiler | None) -> dict[Path, str]:
    """Hash each object file's inputs: its source, all headers, its flags, the machine, and the compiler if given."""
    headers = [item for path in sorted(source_dir.glob("*.h")) for item in (path.name.encode(), path.read_bytes())]
    target = f"{sys.platform} {platform.machine()} {compiler or ''}".encode()
    return {
        source: _digest([target, *headers, source.read_bytes(), repr((COMMON_FLAGS, flag_sets(source))).encode()])
        for source in sorted(source_dir.glob("*.c"))
    }


def source_digest(source_dir: Path = SOURCE_DIR) -> str:
    """Identify the library that these sources give on this machine, independent of the compiler."""
    digests = _object_digests(source_dir, None)
    return _digest([f"{source.name} {digest}".encode() for source, digest in digests.items()])


def _run_compiler(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KernelError(f"the C compiler failed: {shlex.join(command)}\n{done.stderr.strip()}")
    if done.stderr.strip():
        sys.stderr.write(done.stderr)


def _own_flags(compiler: Compiler, source: Path, object_dir: Path) -> tuple[str, ...]:
    """Return the first of a source's flag sets that the compiler accepts."""
    trial = object_dir / f"{source.stem}.{os.getpid()}"
    for flags in flag_sets(source):
        command = [*compiler.command, *flags, "-x", "c", "-c", os.devnull, "-o", str(trial)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        trial.unlink(missing_ok=True)
        if done.returncode == 0:
            return flags
    return ()


@contextlib.contextmanager
def _only_builder(native_dir: Path) -> Iterator[None]:
    """Let one process at a time build here. If files cannot be locked, renames still keep the library complete."""
    with (native_dir / ".lock").open("w") as lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        except ImportError:
            pass
        yield


def _compile_objects(compiler: Compiler, source_dir: Path, object_dir: Path) -> list[Path]:
    """Compile the sources without an up-to-date object, and delete old objects."""
    object_dir.mkdir(exist_ok=True)
    digests = _object_digests(source_dir, compiler)
    objects = {source: object_dir / f"{source.stem}-{digest[:24]}.o" for source, digest in digests.items()}

    def compile_one(source: Path) -> None:
        unfinished = objects[source].with_suffix(f".{os.getpid()}.o")
        own_flags = _own_flags(compiler, source, object_dir)
        _run_compiler([*compiler.command, *COMMON_FLAGS, *own_flags, "-c", str(source), "-o", str(unfinished)])
        unfinished.replace(objects[source])

    missing = [source for source, path in objects.items() if not path.exists()]
    with ThreadPoolExecutor(os.cpu_count() or 1) as workers:
        list(workers.map(compile_one, missing))
    for stale in set(object_dir.iterdir()) - set(objects.values()):
        stale.unlink()
    return list(objects.values())


def build(compiler_command: str | None = None, *, source_dir: Path = SOURCE_DIR, native_dir: Path = NATIVE_DIR) -> Path:
    """Build the library if it is not up to date, and return its path.

    Without `compiler_command` a library of the current sources counts as up to date for every compiler. Raises
    KernelError if there is no compiler or it fails.
    """
    native_dir.mkdir(parents=True, exist_ok=True)
    library, record = native_dir / LIBRARY_NAME, native_dir / "build.json"
    with _only_builder(native_dir):
        wanted = source_digest(source_dir)
        if library.exists() and record.exists():
            made = json.loads(record.read_text())
            if made["sources"] == wanted and compiler_command in {None, made["compiler"]}:
                return library
        compiler = find_compiler(compiler_command)
        objects = _compile_objects(compiler, source_dir, native_dir / "obj")
        handle, name = tempfile.mkstemp(prefix=LIBRARY_NAME, dir=native_dir)
        os.close(handle)
        try:
            libraries = [] if sys.platform == "win32" else ["-lpthread", "-lm"]
            _run_compiler([*compiler.command, "-shared", "-o", name, *map(str, objects), *libraries])
            Path(name).chmod(0o755)
            record.unlink(missing_ok=True)
            Path(name).replace(library)
        finally:
            Path(name).unlink(missing_ok=True)
        record.write_text(json.dumps({"sources": wanted, "compiler": str(compiler)}) + "\n")
    return library


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the library in place and print its path, or an error with the next step."""
    parser = argparse.ArgumentParser(prog="python -m kvasir.kernels.build", description=main.__doc__)
    parser.add_argument("--compiler", metavar="CC", help="a command that takes gcc's options, such as clang")
    options = parser.parse_args(arguments)
    try:
        library = build(options.compiler)
    except KernelError as error:
        sys.stderr.write(f"kvasir: {error}\n")
        return 1
    sys.stdout.write(f"{library}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
