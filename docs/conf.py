"""Sphinx's settings for the site of these pages: `make docs` builds it into run/docs/, strictly.

A link to a file outside docs/, or to a folder, is shown as its path: the site has no page for it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s:]+)(#[^)]*)?\)")

project = "Kvasir"
author = "the Kvasir project"
extensions = ["myst_parser"]
exclude_patterns = ["figures/*.json"]
html_theme = "furo"
html_title = "Kvasir"
nitpicky = True
myst_heading_anchors = 4
myst_fence_as_directive: list[str] = []
suppress_warnings = ["misc.highlighting_failure"]  # blocks without a language are often not Python


def show_outside_files(_app: Any, docname: str, source: list[str]) -> None:
    """Replace links that leave docs/ by their text and the file's path."""
    folder = (HERE / docname).parent

    def replaced(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        has_page = target.is_relative_to(HERE) and not target.is_dir()
        if has_page or not target.exists():  # what does not exist is left, so that the build fails
            return match[0]
        return f"{match[1]} (`{target.relative_to(HERE.parent)}`)"

    source[0] = LINK.sub(replaced, source[0])


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("source-read", show_outside_files)
