"""Draws the pictures of docs/develop/performance.md from the figures that lie beside them.

`python -m benchmarks.charts.draw_curves [--check]`. Each docs/figures/NAME.json is one JSON line of a benchmark; where
`curves` knows its picture it is written as NAME.svg. With --check nothing is written, and the exit code is 1 when a
picture is not what its figures make.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.charts.curves import CURVES
from benchmarks.charts.svg_chart import draw
from kvasir.errors import ConfigError

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"


def main() -> None:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a picture is old")
    options = parser.parse_args()
    wanted = pictures(FIGURES)
    if options.check:
        old = differing(wanted)
        sys.exit(f"not what their figures make: {', '.join(path.name for path in old)}" if old else 0)
    for path, svg in wanted.items():
        path.write_text(svg, encoding="utf-8")
        print(path)


def pictures(folder: Path) -> dict[Path, str]:
    """Return what every picture of a folder has to be. Raises ConfigError, naming the file, for figures that do not
    fit."""
    wanted = {}
    for path in sorted(folder.glob("*.json")):
        curve = CURVES.get(path.stem)
        if curve is None:
            continue
        try:
            wanted[path.with_suffix(".svg")] = draw(curve(json.loads(path.read_text(encoding="utf-8"))))
        except (ConfigError, json.JSONDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from error
    return wanted


def differing(wanted: dict[Path, str]) -> list[Path]:
    """Pictures that are missing or differ from what they have to be."""
    return [path for path, svg in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != svg]


if __name__ == "__main__":
    main()
