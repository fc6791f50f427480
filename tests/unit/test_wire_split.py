"""Splitting dispatches: every pair travels once, with its row, and nothing is over a limit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.errors import WireError
from kvasir.kernels.api import RowFormat
from kvasir.wire.codec import encode
from kvasir.wire.frames import Dispatch, ReplyType, SumOrder
from kvasir.wire.header import PROTOCOL_LIMITS, Limits, sums_bytes
from kvasir.wire.split import result_bytes, split_dispatch

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


# Sums

WIDE = 256


def wide_rows(n_rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return (np.arange(n_rows * 261) % 119).astype(np.uint8).reshape(n_rows, -1)


def order_of(n_rows: int, n_pairs: int) -> SumOrder:
    return SumOrder(np.arange(n_pairs, dtype=np.float32), np.arange(n_rows, dtype=np.int32))


@given(
    st.integers(1, 30).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), min_size=1, max_size=90))
    ),
    st.integers(1, 8),
    st.integers(8, 60),
    st.integers(1000, 20_000),
)
@settings(max_examples=150, deadline=None)
def test_parts_for_sums_keep_rows_pairs_and_exponents_together(
    shape: tuple[int, list[int]], max_rows: int, max_pairs: int, payload: int
) -> None:
    n_rows, named = shape
    rows, pair_rows, order = wide_rows(n_rows), np.array(named, np.int32), order_of(n_rows, len(named))
    pair_ids = np.arange(len(named), dtype=np.int32)
    limits = Limits(payload, max_rows, max_pairs)
    try:
        parts = split_dispatch(rows, pair_rows, pair_ids, WIDE, limits, order)
    except WireError:
        most = int(np.bincount(pair_rows).max())
        assert most > max_pairs or sums_bytes(1, WIDE) > payload or 261 + 4 + 12 * most > payload
        return
    seen, covered = np.zeros(len(named), int), np.zeros(n_rows, int)
    for part in parts:
        assert part.sums is not None
        assert sums_bytes(len(part.rows), WIDE) <= payload
        arrays = part.rows, part.pair_rows, part.pair_ids
        encode(Dispatch(1, 0, RowFormat.KX1, WIDE, *arrays, ReplyType.F32, False, part.sums), limits)
        own = slice(part.first_row, part.first_row + len(part.rows))
        assert part.rows.tobytes() == rows[own].tobytes()
        assert part.sums.exponents.tolist() == order.exponents[own].tolist()
        assert part.sums.weights.tolist() == order.weights[part.pairs].tolist()
        assert (part.pair_rows + part.first_row).tolist() == pair_rows[part.pairs].tolist()
        assert part.cost(WIDE) == part.rows.nbytes + sums_bytes(len(part.rows), WIDE)
        seen[part.pairs] += 1
        covered[own] += 1
    assert (seen == 1).all()
    assert (covered[named] == 1).all()  # all pairs of a row are in one part, so that its sum comes whole


def test_sums_are_one_part_where_their_outputs_would_be_many() -> None:
    rows, pair_rows = wide_rows(6), np.repeat(np.arange(6, dtype=np.int32), 31)
    limits = Limits(sums_bytes(6, WIDE), 6, 6 * 31)
    (part,) = split_dispatch(rows, pair_rows, pair_rows, WIDE, limits, order_of(6, len(pair_rows)))
    assert part.rows is rows
    assert len(split_dispatch(rows, pair_rows, pair_rows, WIDE, Limits(31 * 1024, 6, 6 * 31))) == 6


@pytest.mark.parametrize("pairs_of_row", [1, 31, 100])  # the answer is larger, then the request
def test_limits_of_sums_hold_to_the_row_and_to_the_byte(pairs_of_row: int) -> None:
    n_pairs = 6 * pairs_of_row
    rows, pairs, order = wide_rows(6), np.repeat(np.arange(6, dtype=np.int32), pairs_of_row), order_of(6, n_pairs)
    payload = max(6 * (261 + 4) + 12 * n_pairs, sums_bytes(6, WIDE))
    assert len(split_dispatch(rows, pairs, pairs, WIDE, Limits(payload, 6, n_pairs), order)) == 1
    for limits in (Limits(payload - 1, 6, n_pairs), Limits(payload, 5, n_pairs), Limits(payload, 6, n_pairs - 1)):
        parts = split_dispatch(rows, pairs, pairs, WIDE, limits, order)
        assert [len(part.rows) for part in parts] == [3, 3]
