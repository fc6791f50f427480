"""Compiles the pages' translations, `.po` to `.mo`, without the gettext tools: `python -m tools.compile_messages`.

A person runs it after changing a `.po` file and commits both; a test holds the `.mo` files to it. Reads what these
files use: comments, flags, contexts, plurals, strings over several lines. Errors name file and line.
"""

from __future__ import annotations

import ast
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LOCALE = Path(__file__).resolve().parents[1] / "frontend" / "locale"
_LINE = re.compile(r'(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)\s+(".*")')
_MAGIC = 0x950412DE


class MessageError(Exception):
    """A `.po` file that cannot be read; says where."""


@dataclass(slots=True)
class Entry:
    """A message: `texts` by keyword (`msgid`, `msgstr[0]`), `line` where it begins, from 1."""

    line: int
    is_fuzzy: bool = False
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """As gettext looks it up."""
        context = self.texts.get("msgctxt")
        plural = self.texts.get("msgid_plural")
        key = self.texts["msgid"] if plural is None else f"{self.texts['msgid']}\0{plural}"
        return key if context is None else f"{context}\x04{key}"

    @property
    def translations(self) -> list[str]:
        """One, or one for each plural form."""
        return [text for name, text in sorted(self.texts.items()) if name.startswith("msgstr")]


def read_entries(path: Path) -> list[Entry]:
    """All messages of a `.po` file, the header (an empty msgid) first. Raises MessageError."""
    entries: list[Entry] = []
    for entry in _entries(path):
        if "msgid" not in entry.texts or not entry.translations:
            raise MessageError(f"{path}:{entry.line}: a message needs msgid and msgstr")
        entries.append(entry)
    keys = [entry.key for entry in entries]
    twice = next((entry for at, entry in enumerate(entries) if entry.key in keys[:at]), None)
    if twice is not None:
        raise MessageError(f"{path}:{twice.line}: {twice.texts['msgid']!r} was there before")
    return entries


def _entries(path: Path) -> Iterator[Entry]:
    entry, keyword, is_fuzzy = None, "", False
    for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            is_fuzzy |= line.startswith("#,") and "fuzzy" in line
            continue
        form = _LINE.fullmatch(line)
        if form is not None:
            keyword = form[1]
            if entry is None or (keyword in ("msgctxt", "msgid") and "msgid" in entry.texts):
                if entry is not None:
                    yield entry
                entry, is_fuzzy = Entry(number, is_fuzzy), False
            entry.texts[keyword] = _string(path, number, form[2])
        elif entry is not None and line.startswith('"'):
            entry.texts[keyword] += _string(path, number, line)
        else:
            raise MessageError(f"{path}:{number}: {line[:60]!r} is no line of a .po file")
    if entry is not None:
        yield entry


def _string(path: Path, number: int, quoted: str) -> str:
    try:
        return str(ast.literal_eval(quoted))
    except (SyntaxError, ValueError) as error:
        raise MessageError(f"{path}:{number}: {quoted[:60]} is no string") from error


def compiled(path: Path) -> bytes:
    """The `.mo` file's bytes for a `.po` file. Raises MessageError."""
    found = {
        entry.key: "\0".join(entry.translations)
        for entry in read_entries(path)
        if all(entry.translations) and not entry.is_fuzzy
    }
    pairs = sorted((key.encode(), text.encode()) for key, text in found.items())
    keys, texts = [key for key, _ in pairs], [text for _, text in pairs]
    first = 28 + 16 * len(pairs)
    packed_keys, packed_texts = (b"".join(item + b"\0" for item in column) for column in (keys, texts))
    header = struct.pack("<7I", _MAGIC, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, first)
    return header + _table(keys, first) + _table(texts, first + len(packed_keys)) + packed_keys + packed_texts


def _table(items: list[bytes], offset: int) -> bytes:
    rows = b""
    for item in items:
        rows += struct.pack("<2I", len(item), offset)
        offset += len(item) + 1
    return rows


def main() -> int:
    """Compile all; returns an exit code."""
    for path in sorted(LOCALE.glob("*/LC_MESSAGES/*.po")):
        try:
            data = compiled(path)
        except MessageError as error:
            print(error, file=sys.stderr)
            return 1
        path.with_suffix(".mo").write_bytes(data)
        print(f"{path.relative_to(LOCALE)}: {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
