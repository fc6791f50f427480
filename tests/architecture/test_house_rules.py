"""The house rules that a linter does not know: sizes of modules and functions, and documents that stay true."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("kvasir", "kvasir_site", "market", "relay", "backbone", "frontend", "benchmarks", "tools")
DOCUMENTS = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "models/*.md") for path in ROOT.glob(pattern)
)


def tracked() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


def product_modules() -> list[Path]:
    """Python that people write: all rooms but the migrations that Django writes."""
    ours = [p for p in tracked() if p.suffix == ".py" and p.relative_to(ROOT).parts[0] in PRODUCT]
    return [p for p in ours if "migrations" not in p.parts]


def test_functions_stay_under_40_lines() -> None:
    long = {}
    for path in product_modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                n_lines = (node.end_lineno or 0) - node.body[0].lineno + 1
                if ast.get_docstring(node) and len(node.body) > 1:
                    n_lines = (node.end_lineno or 0) - node.body[1].lineno + 1
                if n_lines >= 40:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = n_lines
    assert long == {}


def test_javascript_functions_stay_under_40_lines_and_modules_say_what_they_are() -> None:
    """By indentation: a function at the margin, or a method of a class there, ends where its brace stands below it."""
    begins = re.compile(r"( {4}|)(?:export )?(?:static |async |get |function\*? ?|#)*\w*\(.*\{$")
    words = re.compile(r" *(?:if|for|while|switch|catch|return)\b")
    long, silent = {}, []
    for path in sorted((ROOT / "frontend" / "static" / "kvasir").rglob("*.js")):
        lines = path.read_text().splitlines()
        if "vendor" in path.parts:
            continue
        if not lines[0].startswith(("/**", "//")):
            silent.append(path.name)
        for number, line in enumerate(lines):
            if (form := begins.match(line)) is None or words.match(line):
                continue
            end = next((n for n in range(number + 1, len(lines)) if lines[n].startswith(f"{form[1]}}}")), number)
            if end - number > 40:
                long[f"{path.name}:{number + 1}"] = end - number
    assert (long, silent) == ({}, [])


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(p.relative_to(ROOT))
        for p in product_modules()
        if p.read_text() and not ast.get_docstring(ast.parse(p.read_text()))
    ]
    assert silent == []


def test_no_vague_module_names() -> None:
    vague = {"utils", "util", "helpers", "common", "misc", "base"}
    assert [str(p.relative_to(ROOT)) for p in product_modules() if p.stem in vague] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_paths_in_documents_exist(document: Path) -> None:
    text = document.read_text()
    missing = []
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target and not (document.parent / target).exists():
            missing.append(target)
    rooms = "|".join((*PRODUCT, "docs", "models", "tests"))
    for name in re.findall(rf"(?<![\w/.])((?:{rooms})/[\w./-]*\w\.(?:py|md|c|h|json|txt|gguf|sh|wgsl))", text):
        if not (ROOT / name).exists():
            missing.append(name)
    assert missing == []


def test_commands_in_documents_exist() -> None:
    text = "\n".join(p.read_text() for p in DOCUMENTS)
    readmes = (ROOT / "README.md").read_text() + (ROOT / "README.id.md").read_text()
    targets = set(re.findall(r"\bmake ([a-z]+)\b", readmes))
    makefile = (ROOT / "Makefile").read_text()
    assert {t for t in targets if f"\n{t}:" not in makefile} == set()
    commands = set(re.findall(r"manage\.py ([a-z_]+)", text)) - {"help", "migrate", "makemigrations", "createsuperuser"}
    found = {p.stem for p in ROOT.glob("*/management/commands/*.py")}
    assert commands - found == set()
    modules = set(re.findall(r"python -m ([a-z_.]+[a-z_])", text))
    assert {
        m
        for m in modules
        if not (ROOT / (m.replace(".", "/") + ".py")).exists() and not (ROOT / m.replace(".", "/")).is_dir()
    } == set()


def test_the_repo_names_no_machine() -> None:
    pattern = re.compile(r"(?<![\w.$}/])/(?:work|root|home)/\w|pypi\.org|/opt/")
    offenders = []
    for path in tracked():
        if path.suffix in {".py", ".md", ".toml", ".txt", ".sh", ".c", ".h", ".yml", ".cfg"} and path != Path(__file__):
            offenders += [
                f"{path.relative_to(ROOT)}: {line.strip()}"
                for line in path.read_text().splitlines()
                if pattern.search(line)
            ]
    assert offenders == []
