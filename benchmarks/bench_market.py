"""Measure what the market costs and whether it keeps its word: 10,000 workers with 64 experts each of 48 x 256.

`python -m benchmarks.bench_market [--json] [--quick]`. Demand and volunteering are measured in turns with a dictionary
in this process and with SQLite; through HTTP against the site as a process. Healing runs on a virtual clock.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import django


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a smoke run whose figures mean nothing")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kvasir_site.settings")
    django.setup()
    from benchmarks.market.figures import FULL, SMOKE, measure  # after the setup: it reads Django's models

    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), SMOKE if options.quick else FULL)
    if options.json:
        print(json.dumps(figures))
        return
    for key, value in figures.items():
        print(f"{key:<20} {value}")


if __name__ == "__main__":
    main()
