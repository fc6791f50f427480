"""The budget of a chat template's work, and the text operations that count against it.

`template_sandbox` calls them. Loop rounds, calls and handled characters count against one budget a rendering, and
texts, lists and numbers have a largest size; a template that exceeds a limit gets a SecurityError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from jinja2.exceptions import SecurityError

MAX_STEPS = 200_000
MAX_LENGTH = 1 << 22  # characters of a text, elements of a list
MAX_INTEGER_BITS = 128
MAX_INDENT = 64
_CHARACTERS_A_STEP = 256
_WIDE_FIELD = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{3})")
_WIDE_BRACES = re.compile(r"\{[^{}]*(?:\{|\d{3})")

_steps_left: ContextVar[int] = ContextVar("steps_left", default=MAX_STEPS)


@contextmanager
def template_budget(n_steps: int = MAX_STEPS) -> Iterator[None]:
    """Count everything that a template does inside against a new budget."""
    token = _steps_left.set(n_steps)
    try:
        yield
    finally:
        _steps_left.reset(token)


def charge(n_characters: int = 0) -> None:
    """Count one step, and more for many characters."""
    left = _steps_left.get() - 1 - n_characters // _CHARACTERS_A_STEP
    if left < 0:
        raise SecurityError("it does too much work (loops, calls or text)")
    _steps_left.set(left)


def length_of(value: object) -> int:
    """Return the length of a text or container, and 0 for anything else."""
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 0


def check_length(length: int) -> None:
    """Count and bound a text or list before it is built."""
    if length > MAX_LENGTH:
        raise SecurityError(f"it builds a text or list of {length} elements; at most {MAX_LENGTH} are allowed")
    charge(length)


def check_bits(n_bits: int) -> None:
    """Bound an integer before it is computed."""
    if n_bits > MAX_INTEGER_BITS:
        raise SecurityError(f"it computes a number of about {n_bits} bits; at most {MAX_INTEGER_BITS} are allowed")


def check_product(left: object, right: object) -> None:
    """Bound a product of numbers, or the repetition of a text or list."""
    if isinstance(left, int) and isinstance(right, int):
        check_bits(left.bit_length() + right.bit_length())
    elif isinstance(right, int):
        check_length(length_of(left) * max(right, 0))
    elif isinstance(left, int):
        check_length(length_of(right) * max(left, 0))


def check_format(template: str, values: object) -> None:
    """Bound the result of `template % values`."""
    if _WIDE_FIELD.search(template):
        raise SecurityError(f"the format {template[:40]!r} asks for a wide field")
    check_length(len(template) + template.count("%") * _text_length(values))


def check_brace_format(template: str, values: object) -> None:
    """Bound the result of `template.format(values)`."""
    if _WIDE_BRACES.search(template):
        raise SecurityError(f"the format {template[:40]!r} asks for a wide or computed field")
    check_length(len(template) + template.count("{") * _text_length(values))


def bounded_text(value: object) -> str:
    """Return str(value), unless it would be too long: a list may hold one long text many times."""
    if isinstance(value, str):
        return value
    _text_length(value)
    return str(value)


def checked_output(value: object) -> object:
    """Return the value of an expression before it is written."""
    return value if isinstance(value, str) else bounded_text(value)


def bounded_join(parts: Iterable[str]) -> str:
    """Join texts, unless the result would be too long."""
    texts = list(parts)
    check_length(sum(map(len, texts)))
    return "".join(texts)


def count_rounds(items: Iterable[object]) -> list[object]:
    """Return the items of a loop, each counted."""
    rounds = []
    for item in items:
        charge()
        rounds.append(item)
    return rounds


def concat(parts: list[object]) -> str:
    """Compute the operator `~`."""
    return bounded_join(map(bounded_text, parts))


def join(value: Iterable[object], d: str = "", attribute: str | None = None) -> str:
    """Compute the filter and the method `join`."""
    if attribute is not None:
        value = [item.get(attribute, "") if isinstance(item, Mapping) else "" for item in value]
    texts = [bounded_text(item) for item in value]
    check_length(sum(map(len, texts)) + len(d) * len(texts))
    return d.join(texts)


def replace(value: object, old: object, new: object, count: int | None = None) -> str:
    """Compute the filter and the method `replace`."""
    text, before, after = bounded_text(value), bounded_text(old), bounded_text(new)
    n_found = text.count(before) if count is None or count < 0 else min(count, text.count(before))
    check_length(len(text) + n_found * max(0, len(after) - len(before)))
    return text.replace(before, after, n_found)


def indent(value: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Compute the filter `indent`; the first line stays as it is unless `first`, blank ones unless `blank`."""
    margin = width if isinstance(width, str) else " " * min(max(width, 0), MAX_INDENT)
    lines = bounded_text(value).splitlines(keepends=True)
    check_length(sum(map(len, lines)) + len(margin) * len(lines))
    indented = [margin + line if blank or line.strip() else line for line in lines]
    if lines and not first:
        indented[0] = lines[0]
    return "".join(indented)


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Compute the filter `tojson` as chat templates expect it: without escapes for HTML or other scripts."""
    if indent is not None and not 0 <= indent <= MAX_INDENT:
        raise SecurityError(f"tojson indents by {indent}; 0 to {MAX_INDENT} are allowed")
    _text_length(value)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    check_length(len(text))
    return text


def _text_length(value: object) -> int:
    """Return about the length of str(value); every element counts."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if not isinstance(value, list | tuple):
        return 16
    length = 2
    for element in value:
        charge()
        length += 2 + _text_length(element)
        if length > MAX_LENGTH:
            check_length(length)
    return length
