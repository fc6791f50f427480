"""The import graph of the house, read from the source: modules, packages, and the circles in both."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("kvasir", "kvasir_site", "market", "relay", "backbone", "frontend", "benchmarks", "tools")
Graph = Mapping[str, set[str]]


def modules() -> dict[str, Path]:
    """All modules of the house by dotted name, packages included, migrations left out."""
    found = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "migrations" not in parts and "node_modules" not in parts:
                found[".".join(parts).removesuffix(".__init__")] = path
    return found


def import_graph() -> dict[str, set[str]]:
    """Which module imports which at run time: also within functions, but not for type checkers alone."""
    known = modules()
    graph: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        graph[name] = {found for found in _imported(ast.parse(path.read_text()), known) if found != name}
    return graph


def _imported(tree: ast.AST, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                for candidate in (f"{node.module}.{alias.name}", node.module):
                    if candidate in known:
                        yield candidate
                        break
        yield from _imported(node, known)


def between_siblings(graph: Graph, package: str) -> dict[str, set[str]]:
    """The graph of a package's own children, modules and packages; "" is the house itself."""
    depth = package.count(".") + 1 if package else 0
    inside = f"{package}." if package else ""
    siblings: dict[str, set[str]] = defaultdict(set)
    for name, imported in graph.items():
        if not name.startswith(inside) or name == package:
            continue
        child = name.split(".")[depth]
        siblings[child] |= {
            other.split(".")[depth] for other in imported if other.startswith(inside) and other != package
        } - {child}
    return siblings


def circle(graph: Graph) -> list[str]:
    """One import circle of a graph, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []
