"""Translations of the pages: nothing missing, nothing fuzzy, nothing left over, and the compiled files are fresh."""

from __future__ import annotations

import gettext
import io
import re
from pathlib import Path

import pytest

from tests.site.source_texts import script_texts, template_texts, unreadable_calls
from tools.compile_messages import LOCALE, Entry, MessageError, compiled, read_entries

FILES = sorted(LOCALE.glob("*/LC_MESSAGES/*.po"))
SOURCES = {"django": template_texts, "djangojs": script_texts}


def places(text: str) -> list[str]:
    """What `interpolate` and templates put values into."""
    return sorted(re.findall(r"%\(\w+\)s|%[sd]|%%", text))


def test_there_are_translations() -> None:
    assert [path.name for path in FILES] == ["django.po", "djangojs.po"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_text_of_the_pages_is_translated(path: Path) -> None:
    entries = {entry.key for entry in read_entries(path) if all(entry.translations) and not entry.is_fuzzy}
    missing = {key: where for key, where in SOURCES[path.stem]().items() if key not in entries}
    assert missing == {}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_is_fuzzy_empty_or_left_over(path: Path) -> None:
    header, *entries = read_entries(path)
    assert header.key == "" and "Plural-Forms" in header.translations[0]
    assert [e.texts["msgid"] for e in entries if e.is_fuzzy or not all(e.translations)] == []
    used = SOURCES[path.stem]()
    assert [e.texts["msgid"] for e in entries if e.key not in used] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_translations_have_the_places_of_their_text(path: Path) -> None:
    def is_like(entry: Entry) -> bool:
        source = entry.texts.get("msgid_plural", entry.texts["msgid"])
        return all(places(text) == places(source) for text in entry.translations)

    assert [entry.texts["msgid"] for entry in read_entries(path)[1:] if not is_like(entry)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_compiled_files_are_fresh_and_gettext_reads_them(path: Path) -> None:
    data = path.with_suffix(".mo").read_bytes()
    assert data == compiled(path), "run python -m tools.compile_messages"
    catalogue = gettext.GNUTranslations(io.BytesIO(data))
    for entry in read_entries(path)[1:]:
        plural = entry.texts.get("msgid_plural")
        found = (
            catalogue.ngettext(entry.texts["msgid"], plural, 2) if plural else catalogue.gettext(entry.texts["msgid"])
        )
        assert found == entry.translations[-1]


def test_texts_in_javascript_are_plain_literals() -> None:
    assert unreadable_calls() == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('msgid "a"\nmsgstr "b"\n\nmsgid "a"\nmsgstr "c"\n', ":4: 'a' was there before"),
        ('msgid "a"\n', ":1: a message needs msgid and msgstr"),
        ('msgid "a"\nmsgstr "b\n', ":2: 'msgstr \"b' is no line"),
        ('"alone"\n', ":1: '\"alone\"' is no line"),
    ],
)
def test_a_broken_file_names_file_and_line(tmp_path: Path, lines: str, message: str) -> None:
    path = tmp_path / "broken.po"
    path.write_text(lines)
    with pytest.raises(MessageError) as caught:
        read_entries(path)
    assert str(caught.value).startswith(f"{path}{message}")


def test_fuzzy_and_unfinished_messages_are_not_compiled(tmp_path: Path) -> None:
    path = tmp_path / "part.po"
    path.write_text(
        'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n#, fuzzy\nmsgid "old"\nmsgstr "lama"\n\n'
        'msgid "new"\nmsgstr ""\n\nmsgctxt "menu"\nmsgid "open"\nmsgstr ""\n"bu"\n"ka"\n'
    )
    catalogue = gettext.GNUTranslations(io.BytesIO(compiled(path)))
    assert [catalogue.gettext("old"), catalogue.gettext("new")] == ["old", "new"]
    assert catalogue.pgettext("menu", "open") == "buka"
