"""docs/develop/walks.md against the code: files exist, steps are imports or named hops, and walks enter few rooms.

A walk is a section with a numbered list. An item names a file, and with `-> import` or `-> HOP` the way to the next.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "develop" / "walks.md"
IMPORT = "import"
HOPS = {"HTTP", "socket", "Celery", "Redis", "SQL"}
MOST_ROOMS = 8
MOST_ENTRIES = 2  # of one room
ITEM = re.compile(r"^\d+\. `([\w./]+)`(.*?)(?=^\d+\. |\Z)", re.MULTILINE | re.DOTALL)
WAY = re.compile(r"->\s+\*\*([\w]+)\*\*")


@dataclass(frozen=True, slots=True)
class Step:
    """A file, and the way to the next one ("" at the end of a walk)."""

    path: str
    way: str

    @property
    def room(self) -> str:
        return str(Path(self.path).parent)


def walks() -> dict[str, list[Step]]:
    """Steps by the heading of their section."""
    found = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        steps = [Step(path, "".join(WAY.findall(words))) for path, words in ITEM.findall(text)]
        if steps:
            found[title] = steps
    return found


WALKS = walks()


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(path: str) -> set[str]:
    """Names of modules that this file imports, inside functions too; `from a import b` counts as a and a.b."""
    names = set[str]()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def test_the_page_has_the_four_walks() -> None:
    assert list(WALKS) == ["A request", "A row", "A heartbeat", "A reward"]


@pytest.mark.parametrize("name", WALKS)
def test_files_exist_and_ways_are_named(name: str) -> None:
    steps = WALKS[name]
    assert [step.path for step in steps if not (ROOT / step.path).is_file()] == []
    assert [step for step in steps[:-1] if step.way not in HOPS | {IMPORT}] == []
    assert steps[-1].way == "", "nothing follows the last step"


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_enters_few_rooms(name: str) -> None:
    entered = [room for room, _ in groupby(WALKS[name], key=lambda step: step.room)]
    assert len(set(entered)) <= MOST_ROOMS, sorted(set(entered))
    assert {room for room in entered if entered.count(room) > MOST_ENTRIES} == set()


@pytest.mark.parametrize("name", WALKS)
def test_import_steps_are_imports(name: str) -> None:
    """Either file may import the other: a caller its callee, or an implementation the interface that is called."""
    wrong = [
        f"{here.path} and {there.path} do not import each other"
        for here, there in pairwise(WALKS[name])
        if here.way == IMPORT
        and module_name(there.path) not in imported(here.path)
        and module_name(here.path) not in imported(there.path)
    ]
    assert wrong == []
