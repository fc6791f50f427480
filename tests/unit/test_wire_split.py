"""Splitting dispatches: every pair travels once, with its row, and nothing is over a limit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.errors import WireError
from kvasir.kernels.api import RowFormat
from kvasir.wire import encode
from kvasir.wire_frames import Dispatch
from kvasir.wire_header import PROTOCOL_LIMITS, Limits
from kvasir.wire_split import result_bytes, split_dispatch

D_MODEL = 4


def rows_of(n_rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return (np.arange(n_rows * 4 * D_MODEL) % 251).astype(np.uint8).reshape(n_rows, -1)


@given(
    st.integers(1, 30).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), min_size=1, max_size=90))
    ),
    st.integers(1, 8),
    st.integers(8, 60),
    st.integers(200, 2000),
)
@settings(max_examples=150, deadline=None)
def test_parts_are_the_whole_and_fit(shape: tuple[int, list[int]], max_rows: int, max_pairs: int, payload: int) -> None:
    n_rows, named = shape
    rows, pair_rows = rows_of(n_rows), np.array(named, np.int32)
    pair_ids = np.arange(len(named), dtype=np.int32)
    limits = Limits(payload, max_rows, max_pairs)
    try:
        parts = split_dispatch(rows, pair_rows, pair_ids, D_MODEL, limits)
    except WireError:
        most = int(np.bincount(pair_rows).max())
        assert most > max_pairs or result_bytes(most, D_MODEL) > payload or 16 + 8 * most > payload
        return
    seen = np.zeros(len(named), int)
    for part in parts:
        assert result_bytes(len(part.pair_ids), D_MODEL) <= payload
        encode(Dispatch(1, 0, RowFormat.F32, D_MODEL, part.rows, part.pair_rows, part.pair_ids), limits)
        assert part.pair_ids.tobytes() == pair_ids[part.pairs].tobytes()
        assert part.rows[part.pair_rows].tobytes() == rows[pair_rows[part.pairs]].tobytes()
        seen[part.pairs] += 1
    assert (seen == 1).all()


def test_what_fits_is_one_part_without_a_copy() -> None:
    rows, pairs = rows_of(3), np.array([2, 0, 1, 2], np.int32)
    (part,) = split_dispatch(rows, pairs, pairs, D_MODEL, PROTOCOL_LIMITS)
    assert part.rows is rows
    assert part.pair_rows is pairs


def test_limits_hold_to_the_row_and_to_the_byte() -> None:
    rows, pairs = rows_of(6), np.arange(6, dtype=np.int32)
    payload = 6 * (16 + 8)
    assert len(split_dispatch(rows, pairs, pairs, D_MODEL, Limits(payload, 6, 6))) == 1
    for limits in (Limits(payload - 1, 6, 6), Limits(payload, 5, 6), Limits(payload, 6, 5)):
        parts = split_dispatch(rows, pairs, pairs, D_MODEL, limits)
        assert [len(part.rows) for part in parts] == [3, 3]  # of like sizes, not 5 and 1


def test_the_answer_must_fit_too() -> None:
    rows, pair_rows = rows_of(2), np.repeat(np.arange(2, dtype=np.int32), 50)
    ids = np.zeros(100, np.int32)
    limits = Limits(max_payload_bytes=result_bytes(100, D_MODEL))
    assert len(split_dispatch(rows, pair_rows, ids, D_MODEL, limits)) == 1
    smaller = Limits(max_payload_bytes=result_bytes(100, D_MODEL) - 1)
    assert len(split_dispatch(rows, pair_rows, ids, D_MODEL, smaller)) == 2


def test_a_large_real_dispatch_is_split_below_8_mib() -> None:
    rows = np.zeros((512, 3132), np.uint8)
    pair_rows = np.repeat(np.arange(512, dtype=np.int32), 8)
    parts = split_dispatch(rows, pair_rows, pair_rows, 3072, PROTOCOL_LIMITS)
    assert len(parts) == 7
    assert {len(part.rows) for part in parts} <= {73, 74}
    assert all(isinstance(part.pairs, slice) for part in parts)  # sorted by row: answers are copied in one piece


@pytest.mark.parametrize("bad", [-1, 3])
def test_rows_that_do_not_exist_are_refused(bad: int) -> None:
    pairs = np.array([0, bad], np.int32)
    with pytest.raises(WireError, match=r"there are 3 rows"):
        split_dispatch(rows_of(3), pairs, pairs, D_MODEL, PROTOCOL_LIMITS)


def test_a_row_that_can_never_fit_is_named() -> None:
    pairs = np.array([0, 1, 1, 1], np.int32)
    with pytest.raises(WireError, match="row 1 with its 3 pairs"):
        split_dispatch(rows_of(2), pairs, pairs, D_MODEL, Limits(max_pairs=2))
