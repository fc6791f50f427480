"""Rounding of replies depends on the pair alone, so placement cannot change it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from backbone.engine.swarm.reply_format import ReplyFormat, round_replies

ROWS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.just(4)),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def test_f32_is_untouched() -> None:
    rows = np.asarray([[1e30, 1 / 3]], np.float32)
    assert round_replies(rows, ReplyFormat.F32) is rows


def test_f16_rounds_what_fits_and_leaves_the_rest() -> None:
    rows = np.asarray([[1 / 3, 65504.0], [1 / 3, 65520.0]], np.float32)
    rounded = round_replies(rows, ReplyFormat.F16)
    assert rounded[0].tolist() == [float(np.float16(1 / 3)), 65504.0]
    assert rounded[1].tolist() == rows[1].tolist()


@settings(max_examples=80, deadline=None)
@given(ROWS)
def test_rounding_is_by_pair_and_twice_is_once(rows: np.ndarray) -> None:
    rounded = round_replies(rows, ReplyFormat.F16)
    assert np.array_equal(round_replies(rounded, ReplyFormat.F16), rounded)
    for number in range(len(rows)):
        assert np.array_equal(round_replies(rows[number : number + 1], ReplyFormat.F16)[0], rounded[number])
