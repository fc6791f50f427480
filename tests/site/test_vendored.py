"""Vendored libraries: the bytes that were published, pinned, with their licences, and nothing else."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from frontend.content_policy import IMPORTS, VENDOR

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "frontend/static/kvasir/vendor"
LISTS = {"SHA256SUMS", "VERSIONS.json"}


def hashes() -> dict[str, str]:
    lines = (FOLDER / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def test_every_file_is_listed_with_its_hash() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file() and path.name not in LISTS]
    found = {str(path.relative_to(FOLDER)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert found == hashes()


def test_every_file_belongs_to_a_pinned_library_with_a_licence() -> None:
    versions = json.loads((FOLDER / "VERSIONS.json").read_text())
    assert sorted(name for library in versions.values() for name in library["files"]) == sorted(hashes())
    for library in versions.values():
        assert library["licence"] in {"MIT", "Apache-2.0"}
        licence = next(name for name in library["files"] if name.endswith("LICENSE"))
        assert library["licence"].split("-")[0] in (FOLDER / licence).read_text()


def test_types_for_development_are_of_the_vendored_versions() -> None:
    versions = json.loads((FOLDER / "VERSIONS.json").read_text())
    pinned = json.loads((ROOT / "frontend/package.json").read_text())["devDependencies"]
    vendored = {name: library["version"] for name, library in versions.items()}
    assert {name: pinned[name] for name in pinned if name in vendored} == {
        name: version for name, version in vendored.items() if name in pinned
    }
    assert all(version[0].isdigit() for version in pinned.values()), "pins, not ranges"
    locked = json.loads((ROOT / "frontend/package-lock.json").read_text())["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in pinned} == pinned


def test_the_import_map_names_files_that_are_there() -> None:
    assert [url for url in IMPORTS.values() if not (FOLDER / url.removeprefix(f"{VENDOR}/")).is_file()] == []
