"""Conditions and byte ranges of HTTP requests (RFC 9110, sections 13 and 14), as pure functions of header texts.

`slices.server` applies them to requests for slices. Each slice has one strong entity tag and no date, so dates never
match. A single range is served; a request for several gets the whole, as the RFC allows. Malformed fields are ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

# a first, then maybe a last position; or a length counted from the end
_RANGE = re.compile(r"bytes=[ \t]*(?:(?P<first>\d+)-(?P<last>\d*)|-(?P<suffix>\d+))[ \t]*", re.ASCII | re.IGNORECASE)
_TAG = re.compile(r'[ \t]*(?P<weak>W/)?"(?P<opaque>[\x21\x23-\x7e\x80-\xff]*)"[ \t]*')
_DIGITS_MAX = 18  # of a position that is read as a number; longer ones are beyond the end of every file


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` up to, not including, `stop` of a representation of `total` bytes."""

    start: int
    stop: int
    total: int

    @property
    def n_bytes(self) -> int:
        return self.stop - self.start

    @property
    def content_range(self) -> str:
        """The Content-Range field of a 206."""
        return f"bytes {self.start}-{self.stop - 1}/{self.total}"


class Verdict(Enum):
    """The status of the answer."""

    WHOLE = 200
    PART = 206
    NOT_MODIFIED = 304
    PRECONDITION_FAILED = 412
    UNSATISFIABLE = 416


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditional fields of a request, None for each that is absent."""

    range: str | None = None
    if_range: str | None = None
    if_match: str | None = None
    if_none_match: str | None = None


def judge(conditions: Conditions, is_get: bool, etag: str, total: int) -> tuple[Verdict, Span]:
    """Return the status and the body's span, in the RFC's order of precedence.

    `etag` is strong and quoted, `total` at least 1. The span is the whole for every verdict but PART.
    """
    whole = Span(0, total, total)
    if conditions.if_match is not None and not _matches(conditions.if_match, etag, takes_weak=False):
        return Verdict.PRECONDITION_FAILED, whole
    if conditions.if_none_match is not None and _matches(conditions.if_none_match, etag, takes_weak=True):
        return Verdict.NOT_MODIFIED, whole
    if not is_get or conditions.range is None:
        return Verdict.WHOLE, whole
    if conditions.if_range is not None and conditions.if_range.strip(" \t") != etag:
        return Verdict.WHOLE, whole
    return _asked_span(conditions.range, whole)


def _asked_span(field: str, whole: Span) -> tuple[Verdict, Span]:
    match = _RANGE.fullmatch(field)
    if match is None:
        return Verdict.WHOLE, whole
    total = whole.total
    if match["suffix"] is not None:
        n_last = min(_number(match["suffix"]), total)
        if n_last == 0:
            return Verdict.UNSATISFIABLE, whole
        return Verdict.PART, Span(total - n_last, total, total)
    first = _number(match["first"])
    last = _number(match["last"]) if match["last"] else total - 1
    if match["last"] and _is_less(match["last"], match["first"]):
        return Verdict.WHOLE, whole  # not a valid range
    if first >= total:
        return Verdict.UNSATISFIABLE, whole
    return Verdict.PART, Span(first, min(last + 1, total), total)


def _number(digits: str) -> int:
    significant = digits.lstrip("0") or "0"
    return int(significant) if len(significant) <= _DIGITS_MAX else 10**_DIGITS_MAX


def _is_less(digits: str, than: str) -> bool:
    """Return whether a number is less than another one, for any number of digits."""
    left, right = digits.lstrip("0"), than.lstrip("0")
    return (len(left), left) < (len(right), right)


def _matches(field: str, etag: str, takes_weak: bool) -> bool:
    """Return whether a list of entity tags has this one, or is "*"."""
    if field.strip(" \t") == "*":
        return True
    opaque = etag.strip('"')
    position = 0
    while position < len(field):
        match = _TAG.match(field, position)
        if match is None:
            return False
        if match["opaque"] == opaque and (takes_weak or not match["weak"]):
            return True
        position = match.end()
        if position < len(field):
            if field[position] != ",":
                return False
            position += 1
    return False
