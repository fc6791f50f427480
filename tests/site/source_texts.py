"""Finds every text for people in templates, Python and JavaScript of the front end, as translators must have it.

Plain patterns, since the house rule is plain literals: what they cannot read is told as a broken rule.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

FRONTEND = Path(__file__).resolve().parents[2] / "frontend"
_STRING = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\''
_TAG = re.compile(rf"\{{%\s*(?:translate|trans)\s+({_STRING})")
_BLOCK = re.compile(r"\{%\s*blocktrans(?:late)?\b([^%]*)%\}(.*?)\{%\s*endblocktrans(?:late)?\s*%\}", re.DOTALL)
_PYTHON = re.compile(rf"\b(?:gettext|gettext_lazy|_)\(\s*({_STRING})")
_ONE = re.compile(rf"\bgettext\(\s*({_STRING})\s*,?\s*\)")
_MANY = re.compile(rf"\bngettext\(\s*({_STRING})\s*,\s*({_STRING})\s*,")
_ANY_CALL = re.compile(r"\bn?gettext\(")


def template_texts() -> dict[str, str]:
    """Message key of django.po by text, with the file that has it."""
    found: dict[str, str] = {}
    for path in sorted(FRONTEND.glob("templates/**/*.html")):
        text = path.read_text()
        for tag in _TAG.finditer(text):
            found[_value(tag[1])] = path.name
        for block in _BLOCK.finditer(text):
            found[_block(block[1], block[2])] = path.name
    for path in sorted(FRONTEND.glob("*.py")):
        for call in _PYTHON.finditer(path.read_text()):
            found[_value(call[1])] = path.name
    return found


def script_texts() -> dict[str, str]:
    """Message key of djangojs.po by text, with the module that has it."""
    found: dict[str, str] = {}
    for path in _modules():
        text = path.read_text()
        for call in _ONE.finditer(text):
            found[_value(call[1])] = path.name
        for call in _MANY.finditer(text):
            found[f"{_value(call[1])}\0{_value(call[2])}"] = path.name
    return found


def unreadable_calls() -> list[str]:
    """Calls whose text is not a plain literal."""
    wrong = []
    for path in _modules():
        text = path.read_text()
        readable = {match.start() for form in (_ONE, _MANY) for match in form.finditer(text)}
        wrong += [f"{path.name}: {text[c.start():c.start() + 60]!r}" for c in _ANY_CALL.finditer(text)
                  if c.start() not in readable]  # fmt: skip
    return wrong


def _modules() -> Iterator[Path]:
    for path in sorted((FRONTEND / "static" / "kvasir").glob("**/*.js")):
        if "vendor" not in path.parts:
            yield path


def _value(literal: str) -> str:
    return str(ast.literal_eval(literal))


def _block(options: str, body: str) -> str:
    """The key of a block: variables become named places, and `{% plural %}` parts two texts."""
    texts = re.split(r"\{%\s*plural\s*%\}", body)
    if "trimmed" in options:
        texts = [" ".join(line.strip() for line in text.strip().splitlines()) for text in texts]
    return "\0".join(re.sub(r"\{\{\s*([\w.|]+)\s*\}\}", r"%(\1)s", text) for text in texts)
