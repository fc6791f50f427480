"""Writes the import rules of `.importlinter` into docs/develop/architecture.md, between two markers.

`python -m tools.import_table [--check]`. `tests/architecture/test_documents.py` holds the page to it. It reads the
contracts and never the code: `lint-imports` holds the code to the contracts.
"""

from __future__ import annotations

import argparse
import configparser
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTRACTS = ROOT / ".importlinter"
PAGE = ROOT / "docs" / "develop" / "architecture.md"
BEGIN = "<!-- import rules: written by python -m tools.import_table -->"
END = "<!-- end of import rules -->"
WIDTH = 120
MOST_NAMES = 12  # of one rule; more are given by their package


def rules(text: str) -> str:
    """Markdown for every contract of an `.importlinter` file. Raises ValueError for a kind that has no words here."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text)
    sections = [parser[name] for name in parser.sections() if name.startswith("importlinter:contract:")]
    return "\n\n".join(_rule(section) for section in sections)


def page_with_rules(page: str, contracts: str) -> str:
    """The page with its rules replaced. Raises ValueError when a marker is missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{rules(contracts)}\n\n{END}{after}"


def _rule(contract: Mapping[str, str]) -> str:
    title, kind = f"**{contract['name'].rstrip('.')}.**", contract["type"]
    if kind == "layers":
        return "\n\n".join([*_wrapped(f"{title} {_where(contract)}"), _layer_table(contract)])
    if kind == "forbidden":
        is_direct = contract.get("allow_indirect_imports", "False").lower() == "true"
        words = "must not import" if is_direct else "must not import, directly or through others,"
        return "\n".join(_wrapped(f"{title} {_names(contract, 'source_modules')} {words} "
                                  f"{_names(contract, 'forbidden_modules')}."))  # fmt: skip
    if kind == "independence":
        return "\n".join(_wrapped(f"{title} {_names(contract, 'modules')} do not import each other."))
    if kind == "protected":
        return "\n".join(
            _wrapped(
                f"{title} Only {_names(contract, 'allowed_importers')} may import "
                f"{_names(contract, 'protected_modules')}."
            )
        )
    if kind == "acyclic_siblings":
        return "\n".join(
            _wrapped(f"{title} No circle of imports between siblings, below {_names(contract, 'ancestors')}.")
        )
    raise ValueError(f"no words for contracts of type {kind!r}")


def _where(contract: Mapping[str, str]) -> str:
    inside = f"In {_names(contract, 'containers')}, each" if contract.get("containers") else "Each"
    return f"{inside} row may import from the rows below it; packages of one row do not import each other."


def _layer_table(contract: Mapping[str, str]) -> str:
    rows = []
    for number, line in enumerate(_lines(contract["layers"]), start=1):
        names = [f"`{name.strip()}`" for name in re.split(r"[|:]", re.sub(r"[()]", "", line))]
        rows.append(f"| {number} | {', '.join(names)}{' (may import each other)' if ':' in line else ''} |")
    return "\n".join(["| layer | packages |", "|---|---|", *rows])


def _names(contract: Mapping[str, str], key: str) -> str:
    """Module names in words; a long list by package, with the number of modules of each."""
    names = _lines(contract.get(key, ""))
    if len(names) <= MOST_NAMES:
        return ", ".join(f"`{name}`" for name in names)
    packages: dict[str, int] = {}
    for name in names:
        package = name.rpartition(".")[0] or name
        packages[package] = packages.get(package, 0) + 1
    return ", ".join(
        f"`{package}`"
        if package in names
        else f"{count} modules of `{package}`"
        if count > 1
        else f"1 module of `{package}`"
        for package, count in packages.items()
    )


def _lines(value: str) -> list[str]:
    return [line.strip() for line in value.splitlines() if line.strip()]


def _wrapped(text: str) -> list[str]:
    return ["\n".join(textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: write the page, or with --check only say whether it is stale (exit code 1)."""
    parser = argparse.ArgumentParser(prog="python -m tools.import_table", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    is_check = parser.parse_args(arguments).check
    page = PAGE.read_text(encoding="utf-8")
    made = page_with_rules(page, CONTRACTS.read_text(encoding="utf-8"))
    if made == page:
        return 0
    if is_check:
        sys.stderr.write(f"{PAGE} is stale: run `python -m tools.import_table`\n")
        return 1
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
