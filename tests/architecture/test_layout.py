"""The shape of the house: small folders that say what they are, modules of a bounded length, no import circle."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests.architecture.import_graph import ROOMS, ROOT, between_siblings, circle, import_graph, modules

MOST_MODULES = 24
MOST_LINES = 450
SCRIPTS = ROOT / "frontend" / "static" / "kvasir"


def scripts() -> list[Path]:
    return [path for path in SCRIPTS.rglob("*.js") if "vendor" not in path.parts]


def test_no_folder_has_more_modules_than_a_person_can_survey() -> None:
    files = [path for path in modules().values() if path.name != "__init__.py"] + scripts()
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in files)
    assert {folder: n for folder, n in counts.items() if n > MOST_MODULES} == {}


def test_no_module_is_longer_than_a_noun_needs() -> None:
    sources = [path for room in ROOMS for end in ("c", "h", "wgsl") for path in (ROOT / room).rglob(f"*.{end}")]
    files = [path for path in (*modules().values(), *scripts(), *sources) if "node_modules" not in path.parts]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: n for name, n in lengths.items() if n > MOST_LINES} == {}


def test_every_package_says_what_it_is_who_enters_and_what_it_never_does() -> None:
    silent = []
    for name, path in modules().items():
        if path.name == "__init__.py" and "management" not in name:
            words = ast.get_docstring(ast.parse(path.read_text())) or ""
            if len([line for line in words.splitlines() if line.strip()]) < 3:
                silent.append(name)
    assert silent == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circle(import_graph()) == []


def test_no_package_imports_itself_by_way_of_its_siblings() -> None:
    """Of every package the children form layers: rooms of the house, and the rooms within each of them."""
    graph = import_graph()
    packages = {name.rpartition(".")[0] for name in graph}
    assert {package: found for package in packages if (found := circle(between_siblings(graph, package)))} == {}
