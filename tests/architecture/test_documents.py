"""Documents that stay true and readable: short lines, two READMEs alike, the import rules, a site that builds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.test_house_rules import DOCUMENTS, tracked
from tools import import_table

ROOT = Path(__file__).resolve().parents[2]
LONGEST_LINE = 159
READMES = ("README.md", "README.id.md")
MOST_README_LINES = 119
MOST_PICTURE_BYTES = 150_000
MOST_LINKS = 10
BUILD_S = 300


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_lines_are_short() -> None:
    """Each line of each document; the change log is exempt."""
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in DOCUMENTS
        if path.name != "CHANGELOG.md"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > LONGEST_LINE
    ]
    assert long == []


def test_modules_named_in_documents_exist() -> None:
    """Names without a folder, or from a folder on, such as `gpu/kernel.py`: some module must end so."""
    modules = "".join(f"/{path.relative_to(ROOT)}\n" for path in tracked())
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in DOCUMENTS
        if path.name != "CHANGELOG.md"
        for name in re.findall(r"`([a-z][\w/]*\.(?:py|js))`", path.read_text(encoding="utf-8"))
        if f"/{name}\n" not in modules
    }
    assert missing == set()


def test_the_import_rules_are_those_of_the_contracts() -> None:
    page = import_table.PAGE.read_text(encoding="utf-8")
    contracts = import_table.CONTRACTS.read_text(encoding="utf-8")
    assert import_table.page_with_rules(page, contracts) == page, "run `python -m tools.import_table`"


def test_import_rules_have_words_for_every_kind_of_contract() -> None:
    made = import_table.rules(
        "[importlinter:contract:a]\nname = Rooms\ntype = layers\ncontainers = house\n"
        "layers =\n  top\n  left | right\n  (low)\n"
        "[importlinter:contract:b]\nname = Apart\ntype = independence\nmodules =\n  left\n  right\n"
        "[importlinter:contract:c]\nname = Pure\ntype = forbidden\nsource_modules = low\nforbidden_modules = socket\n"
    )
    assert "In `house`, each row may import from the rows below it" in made
    assert "| 1 | `top` |\n| 2 | `left`, `right` |\n| 3 | `low` |" in made
    assert "**Apart.** `left`, `right` do not import each other." in made
    assert "**Pure.** `low` must not import, directly or through others, `socket`." in made


@pytest.mark.parametrize("name", READMES)
def test_a_readme_is_short_and_points_to_few_pages(name: str) -> None:
    text = text_of(name)
    assert len(text.splitlines()) <= MOST_README_LINES
    by_reader = re.findall(r"^- \*\*.*$", text, re.MULTILINE)
    assert 0 < len(re.findall(r"\]\(", "\n".join(by_reader))) <= MOST_LINKS


def test_the_readmes_have_the_same_sections_links_figures_and_code() -> None:
    english, indonesian = (text_of(name) for name in READMES)
    for pattern in (r"^(#+) ", r"^```.*?^```", r"\]\((?!README)([^)]+)\)", r"^(\|)"):
        flags = re.MULTILINE | re.DOTALL
        assert re.findall(pattern, english, flags) == re.findall(pattern, indonesian, flags), pattern


def test_pictures_are_small() -> None:
    pictures = list((ROOT / "docs" / "pictures").iterdir())
    assert pictures
    assert {path.name for path in pictures if path.stat().st_size > MOST_PICTURE_BYTES} == set()


def test_every_page_is_in_the_index() -> None:
    pages = {str(p.relative_to(ROOT / "docs").with_suffix("")) for p in (ROOT / "docs").rglob("*.md")} - {"index"}
    listed = re.findall(r"^([a-z]+/[\w/-]+)$", text_of("docs/index.md"), re.MULTILINE)
    assert sorted(listed) == sorted(pages)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Strict: a link to a page or heading that does not exist is a warning, and a warning fails."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(tmp_path / "site")]
    built = subprocess.run(
        [*command, "-d", str(tmp_path / "trees")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_S,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "index.html").is_file()
