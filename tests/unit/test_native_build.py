"""Building the C library: incremental, atomic, with any compiler; and the packaging backend with and without one."""

from __future__ import annotations

import importlib.util
import json
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvasir.errors import KernelError
from kvasir.kernels import build, native

ROOT = Path(__file__).resolve().parents[2]
SHADERS = Path("kvasir/kernels/wgsl")


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A source folder with two small files, and where to build."""
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "answer.h").write_text("int answer(void);\n")
    (sources / "answer.c").write_text('#include "answer.h"\nint answer(void) { return 42; }\n')
    (sources / "answer_avx2.c").write_text("int is_avx2 =\n#ifdef __AVX2__\n1;\n#else\n0;\n#endif\n")
    return sources, tmp_path / "native"


def make(places: tuple[Path, Path], compiler: str | None = None) -> Path:
    return build.build(compiler, source_dir=places[0], native_dir=places[1])


def objects(places: tuple[Path, Path]) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (places[1] / "obj").iterdir()}


def test_nothing_is_done_when_nothing_changed(places: tuple[Path, Path]) -> None:
    library = make(places)
    before = library.stat()
    assert make(places) == library
    assert (library.stat().st_ino, library.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_changed_source_alone_is_compiled_again(places: tuple[Path, Path]) -> None:
    library = make(places)
    before, first = objects(places), library.stat().st_ino
    with library.open("rb") as held:  # a running process's file
        (places[0] / "answer.c").write_text("int answer(void) { return 43; }\n")
        make(places)
        assert held.read(4) == b"\x7fELF" or sys.platform != "linux"
    after = objects(places)
    assert library.stat().st_ino != first
    assert len(after) == 2
    assert len(set(after.items()) & set(before.items())) == 1


def test_a_changed_header_compiles_all_again(places: tuple[Path, Path]) -> None:
    make(places)
    before = objects(places)
    (places[0] / "answer.h").write_text("int answer(void); /* changed */\n")
    make(places)
    assert not set(objects(places)) & set(before)


def test_a_lost_library_is_linked_again(places: tuple[Path, Path]) -> None:
    library = make(places)
    library.unlink()
    assert make(places).exists()


def test_nothing_unfinished_is_left(places: tuple[Path, Path]) -> None:
    make(places)
    assert {path.name for path in places[1].iterdir()} == {build.LIBRARY_NAME, "build.json", "obj", ".lock"}


def test_a_failing_compiler_is_quoted_and_the_old_library_stays(places: tuple[Path, Path]) -> None:
    library = make(places)
    before = library.read_bytes()
    (places[0] / "answer.c").write_text("int answer(void) { return nonsense; }\n")
    with pytest.raises(KernelError, match="nonsense"):
        make(places)
    assert library.read_bytes() == before


def test_a_compiler_that_does_not_know_the_flags_builds_without(places: tuple[Path, Path], tmp_path: Path) -> None:
    wrapper = tmp_path / "old-cc"
    wrapper.write_text(f'#!/bin/sh\ncase "$*" in *-mavx2*) exit 1;; esac\nexec {build.find_compiler()} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    assert make(places, str(wrapper)).exists()
    assert json.loads((places[1] / "build.json").read_text())["compiler"] == str(wrapper)


def test_another_compiler_builds_again_only_when_asked_for(places: tuple[Path, Path], tmp_path: Path) -> None:
    library = make(places)
    before = library.stat().st_ino
    wrapper = tmp_path / "my-cc"
    wrapper.write_text(f'#!/bin/sh\nexec {build.find_compiler()} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    make(places, str(wrapper))
    second = library.stat().st_ino
    assert second != before
    make(places)
    assert library.stat().st_ino == second


def test_the_compiler_is_cc_then_the_system_then_zig_then_a_clear_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -m64")
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in {"cc", "clang"} else None)
    assert build.find_compiler().command == ("cc", "-m64")
    monkeypatch.delenv("CC")
    assert build.find_compiler().command == ("cc",)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name == "clang" else None)
    assert build.find_compiler().command == ("clang",)
    with pytest.raises(KernelError, match="'tcc' is not in PATH"):
        build.find_compiler("tcc")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert build.find_compiler().command == build.ZIG
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(KernelError, match=r"no C compiler.*pip install ziglang.*kvasir\.kernels\.build"):
        build.find_compiler()


def test_the_command_line_says_where_the_library_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build.main([]) == 0
    assert capsys.readouterr().out.strip() == str(build.NATIVE_DIR / build.LIBRARY_NAME)
    assert build.main(["--compiler", "no-such-compiler"]) == 1
    assert "'no-such-compiler' is not in PATH" in capsys.readouterr().err


def test_a_missing_library_is_an_error_with_the_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "NATIVE_DIR", tmp_path)
    native.load.cache_clear()
    try:
        assert not native.available()
        with pytest.raises(KernelError, match=r"is not built.*python -m kvasir\.kernels\.build"):
            native.load()
        (tmp_path / build.LIBRARY_NAME).write_bytes(b"not a library")
        with pytest.raises(KernelError, match="cannot be loaded"):
            native.load()
    finally:
        native.load.cache_clear()


BACKEND = """
import sys
sys.path.insert(0, "tools/build")
import backend
from kvasir.errors import KernelError
if sys.argv[1] == "without":
    def no_compiler(*_):
        raise KernelError("no C compiler was found")
    backend.build.find_compiler = no_compiler
    backend.build.system_compiler = lambda: None
print("requires", backend.get_requires_for_build_wheel())
print(backend.build_wheel("dist"))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a wheel is built from, with what this checkout has compiled already."""
    copied = tmp_path / "checkout"
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "kvasir", copied / "kvasir", ignore=skipped)
    shutil.copytree(ROOT / "tools" / "build", copied / "tools" / "build", ignore=skipped)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copied / name)
    (copied / "dist").mkdir()
    return copied


def build_wheel(checkout: Path, how: str) -> tuple[str, str, Path]:
    """Its requirements, what it said to the person, and the wheel."""
    done = subprocess.run(
        [sys.executable, "-c", BACKEND, how], cwd=checkout, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    return next(line for line in lines if line.startswith("requires")), done.stderr, checkout / "dist" / lines[-1]


def test_a_wheel_holds_the_library_and_is_for_this_platform(checkout: Path) -> None:
    _, _, wheel = build_wheel(checkout, "with")
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert not wheel.name.endswith("-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert f"kvasir/kernels/_native/{build.LIBRARY_NAME}" in names
    shaders = {f"kvasir/kernels/wgsl/{path.name}" for path in (ROOT / SHADERS).glob("*.wgsl")}
    assert len(shaders) > 10
    assert {name for name in names if "wgsl" in name} == shaders
    assert not [name for name in names if name.endswith(".o") or not name.startswith("kvasir")]


def test_without_a_compiler_a_wheel_is_made_with_a_warning(checkout: Path) -> None:
    shutil.rmtree(checkout / "kvasir" / "kernels" / "_native")
    requirements, said, wheel = build_wheel(checkout, "without")
    assert "ziglang" in requirements
    assert wheel.name.endswith("py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if "_native" in name]
    assert "WITHOUT its C library" in said
    assert "about 100 times slower" in said
    assert "python -m kvasir.kernels.build" in said
