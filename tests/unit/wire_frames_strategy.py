"""Hypothesis strategies for frames of every kind, used by the tests of the codec."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from kvasir.experts import ExpertRange
from kvasir.kernels.api import RowFormat
from kvasir.wire.frames import (
    Dispatch,
    Fault,
    FaultCode,
    Frame,
    Goaway,
    Hello,
    Pause,
    Ping,
    Pong,
    Refuse,
    RefuseCode,
    ReplyType,
    Result,
    Role,
    SumOrder,
    SumResult,
    Welcome,
    has_controls,
)
from kvasir.wire.header import Limits, encoded_row_bytes

U32 = st.integers(0, 2**32 - 1)
NUMBER = st.integers(1, 2**32 - 1)
TEXT = st.text(max_size=60).filter(lambda text: not has_controls(text))
FINGERPRINT = st.binary(min_size=32, max_size=32).map(bytes.hex)
LIMITS = st.builds(
    Limits, st.integers(1, 2**23), st.integers(1, 8192), st.integers(1, 65_536), st.integers(1, 2**32 - 1)
)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[ExpertRange, ...]:
    """Ascending ranges that do not overlap."""
    found, layer, start = list[ExpertRange](), draw(st.integers(0, 1000)), 0
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            layer, start = layer + draw(st.integers(1, 9)), 0
        first = start + draw(st.integers(0, 9))
        start = first + draw(st.integers(1, 99))
        found.append(ExpertRange(layer, first, start))
    return tuple(found)


@st.composite
def dispatches(draw: st.DrawFn) -> Dispatch:
    """Small dispatches in both row formats, for outputs and for sums, with any bits in rows, pairs and weights."""
    row_format, is_for_sums = draw(st.sampled_from(RowFormat)), draw(st.booleans())
    is_narrow = row_format is RowFormat.F32 and not is_for_sums
    d_model = draw(st.integers(1, 20)) if is_narrow else 256 * draw(st.integers(1, 2))
    n_rows, n_pairs = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    random = np.random.default_rng(draw(U32))
    order = SumOrder(
        np.frombuffer(random.bytes(4 * n_pairs), np.float32), np.frombuffer(random.bytes(4 * n_rows), np.int32)
    )
    return Dispatch(
        draw(NUMBER),
        draw(U32),
        row_format,
        d_model,
        random.integers(0, 256, (n_rows, encoded_row_bytes(row_format, d_model)), np.uint8),
        random.integers(-(2**31), 2**31, n_pairs).astype(np.int32),
        random.integers(-(2**31), 2**31, n_pairs).astype(np.int32),
        ReplyType.F32 if is_for_sums else draw(st.sampled_from(ReplyType)),
        draw(st.booleans()),
        order if is_for_sums else None,
    )


@st.composite
def results(draw: st.DrawFn) -> Result:
    """Small results in both types, with any bits."""
    dtype = draw(st.sampled_from([np.float32, np.float16]))
    shape = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    random = np.random.default_rng(draw(U32))
    outputs = np.frombuffer(random.bytes(shape[0] * shape[1] * np.dtype(dtype).itemsize), dtype).reshape(shape)
    return Result(draw(NUMBER), draw(U32), outputs)


@st.composite
def sum_results(draw: st.DrawFn) -> SumResult:
    """Small results in sums, with blocks of every width."""
    n_rows, n_blocks = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    random = np.random.default_rng(draw(U32))
    n_bits = random.choice([0, 1, 8, 9, 12, 13, 16, 17, 24, 25, 32], (n_rows * n_blocks, 1))
    values = random.integers(-(2**31), 2**31, (n_rows * n_blocks, 256)) >> np.maximum(32 - n_bits, 0)
    sums = np.where(n_bits > 0, values, 0).astype(np.int32).reshape(n_rows, 256 * n_blocks)
    return SumResult(draw(NUMBER), draw(U32), draw(st.integers(1, 65_536)), sums)


FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Hello, st.sampled_from(Role), FINGERPRINT, FINGERPRINT, TEXT, LIMITS, TEXT, TEXT),
    st.builds(
        Welcome,
        FINGERPRINT,
        FINGERPRINT,
        TEXT,
        st.sampled_from(RowFormat),
        st.integers(1, 65_536),
        ranges(),
        LIMITS,
        TEXT,
    ),
    st.builds(Refuse, st.sampled_from(RefuseCode), TEXT),
    st.builds(Fault, U32, st.sampled_from(FaultCode), TEXT),
    st.builds(Pause, U32),
    st.builds(Goaway, TEXT),
    st.builds(Ping, U32),
    st.builds(Pong, U32),
    dispatches(),
    results(),
    sum_results(),
)
