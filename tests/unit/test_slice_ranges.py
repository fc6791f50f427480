"""Conditions and byte ranges by the RFC: a table of cases, and properties against a plain reading of the grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.slices.ranges import Conditions, Span, Verdict, judge

ETAG, TOTAL = '"abc"', 1000


def verdict_of(is_get: bool = True, **fields: str) -> tuple[Verdict, Span]:
    return judge(Conditions(**fields), is_get, ETAG, TOTAL)


@pytest.mark.parametrize(
    ("field", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-", 0, 1000),
        ("bytes=999-", 999, 1000),
        ("bytes=10-19", 10, 20),
        ("bytes=10-99999999999999999999999999", 10, 1000),
        ("bytes=-1", 999, 1000),
        ("bytes=-1000", 0, 1000),
        ("bytes=-99999999999999999999999999", 0, 1000),
        ("BYTES=5-6", 5, 7),
        ("bytes= 5-6 ", 5, 7),
        ("bytes=0005-0006", 5, 7),
    ],
)
def test_one_range_is_served(field: str, start: int, stop: int) -> None:
    assert verdict_of(range=field) == (Verdict.PART, Span(start, stop, TOTAL))


@pytest.mark.parametrize("field", ["bytes=1000-", "bytes=1000-1001", "bytes=-0", f"bytes={'9' * 5000}-"])
def test_ranges_outside_are_unsatisfiable(field: str) -> None:
    assert verdict_of(range=field) == (Verdict.UNSATISFIABLE, Span(0, TOTAL, TOTAL))


@pytest.mark.parametrize(
    "field",
    [
        "", "bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=5-4", "bytes=1-2,4-5", "bytes=0-0,", "lines=1-2",
        "bytes 1-2", "bytes=1 - 2", "bytes=+1-2", "bytes=1-2-3", "bytes=\u0661-\u0662", "bytes=1-2\x00", "bytes=--1",
        f"bytes={'9' * 5000}-{'9' * 4900}",
    ],
)  # fmt: skip
def test_what_is_not_one_range_gets_the_whole(field: str) -> None:
    assert verdict_of(range=field) == (Verdict.WHOLE, Span(0, TOTAL, TOTAL))


@pytest.mark.parametrize(
    ("if_range", "is_part"),
    [
        ('"abc"', True),
        (' "abc" ', True),
        ('W/"abc"', False),
        ('"abd"', False),
        ("abc", False),
        ("Sun, 29 Nov 2026 10:00:00 GMT", False),
        ("", False),
    ],
)
def test_if_range_takes_only_the_same_strong_tag(if_range: str, is_part: bool) -> None:
    verdict, _ = verdict_of(range="bytes=1-2", if_range=if_range)
    assert verdict is (Verdict.PART if is_part else Verdict.WHOLE)


@pytest.mark.parametrize(
    ("field", "is_found", "is_found_strongly"),
    [
        ("*", True, True),
        ('"abc"', True, True),
        ('W/"abc"', True, False),
        ('"x", "abc"', True, True),
        ('"x,y" , W/"z","abc"', True, True),
        ('"x"', False, False),
        ("abc", False, False),
        ('"x" "abc"', False, False),
        ("", False, False),
    ],
)
def test_lists_of_tags(field: str, is_found: bool, is_found_strongly: bool) -> None:
    verdict, _ = verdict_of(if_none_match=field)
    assert verdict is (Verdict.NOT_MODIFIED if is_found else Verdict.WHOLE)
    verdict, _ = verdict_of(if_match=field)
    assert verdict is (Verdict.WHOLE if is_found_strongly else Verdict.PRECONDITION_FAILED)


def test_precedence() -> None:
    assert verdict_of(if_match='"x"', if_none_match="*")[0] is Verdict.PRECONDITION_FAILED
    assert verdict_of(if_none_match=ETAG, range="bytes=0-1")[0] is Verdict.NOT_MODIFIED
    assert verdict_of(is_get=False, range="bytes=0-1")[0] is Verdict.WHOLE
    assert verdict_of(if_range='"x"', range="bytes=5000-")[0] is Verdict.WHOLE


@given(st.integers(0, 60), st.one_of(st.none(), st.integers(0, 60)), st.integers(1, 50))
def test_every_range_is_the_slice_of_python(first: int, last: int | None, total: int) -> None:
    whole = bytes(range(total))
    text = f"bytes={first}-{'' if last is None else last}"
    verdict, span = judge(Conditions(range=text), True, ETAG, total)
    if last is not None and last < first:
        assert verdict is Verdict.WHOLE
    elif first >= total:
        assert verdict is Verdict.UNSATISFIABLE
    else:
        assert verdict is Verdict.PART
        assert whole[span.start : span.stop] == whole[first : None if last is None else last + 1]
        assert span.content_range == f"bytes {first}-{first + span.n_bytes - 1}/{total}"


@given(st.integers(1, 60), st.integers(1, 50))
def test_every_suffix_is_the_slice_of_python(n_last: int, total: int) -> None:
    verdict, span = judge(Conditions(range=f"bytes=-{n_last}"), True, ETAG, total)
    assert verdict is Verdict.PART
    assert bytes(range(total))[span.start : span.stop] == bytes(range(total))[-n_last:]


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_no_text_breaks_it(range_field: str, if_range: str, tags: str) -> None:
    for prefix in ("", "bytes="):
        verdict, span = judge(Conditions(prefix + range_field, if_range or None, None, tags), True, ETAG, TOTAL)
        assert 0 <= span.start < span.stop <= TOTAL
        assert (verdict is Verdict.PART) or span.n_bytes == TOTAL
