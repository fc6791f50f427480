"""Step 7 of KX1: integer sums of weighted outputs, in C and in numpy, against exact arithmetic and any split."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.errors import KernelError
from kvasir.kernels import native, sums
from kvasir.kernels.oracle import sums as sums_oracle
from kvasir.kernels.sums import MAX_PAIRS_OF_ROW, pack_sums, sum_outputs, sums_to_float, unpack_sums

D = 256
EDGES = np.array(
    [0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F000000,
     0xBF000000, 0x3EFFFFFF, 0x3F000001, 0x3FC00000, 0xBFC00000, 0x4C000000, 0x4BFFFFFF, 0xCC000000, 0x4C000001],
    np.uint32,
).view(np.float32)  # fmt: skip


def test_the_library_is_built() -> None:
    assert native.available()


def exact(output: float, weight: float, exponent: int) -> int:
    """The specification in rational numbers."""
    if abs(output) < 2.0**-126 or abs(weight) < 2.0**-126:
        return 0
    value = Fraction(output) * Fraction(weight) / Fraction(2) ** exponent
    size = min(int(abs(value) + Fraction(1, 2)), 1 << 26)
    return -size if value < 0 else size


def rows_of(seed: int, n_pairs: int, n_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Outputs of many sizes, weights, rows of pairs and exponents, edges among them."""
    rng = np.random.default_rng(seed)
    outputs = (rng.standard_normal((n_pairs, D)) * 2.0 ** rng.integers(-30, 30, (n_pairs, D))).astype(np.float32)
    outputs[:, : len(EDGES)] = EDGES
    weights = (rng.random(n_pairs) * 2.0 ** rng.integers(-12, 3, n_pairs)).astype(np.float32)
    pair_rows = np.sort(rng.integers(0, n_rows, n_pairs)).astype(np.int32)
    return outputs, weights, pair_rows, rng.integers(-40, 40, n_rows).astype(np.int32)


@pytest.mark.parametrize("seed", range(6))
def test_pairs_are_rounded_as_specified(seed: int) -> None:
    outputs, weights, _, exponents = rows_of(seed, 4, 4)
    pair_rows = np.arange(4, dtype=np.int32)
    wanted = [
        [exact(float(value), float(weight), int(exponent)) for value in row]
        for row, weight, exponent in zip(outputs, weights, exponents, strict=True)
    ]
    assert sums_oracle.add(outputs, weights, pair_rows, exponents, 4).tolist() == wanted
    assert sum_outputs(outputs, weights, pair_rows, exponents).tolist() == wanted


@pytest.mark.parametrize("weight", [0.0, -0.5, 1e-45, 2.0**-126, 3.4e38, 1.0])
@pytest.mark.parametrize("exponent", [-180, -149, -23, 0, 23, 127])
def test_edges_of_weights_and_exponents(weight: float, exponent: int) -> None:
    outputs = np.resize(EDGES, D)[None].astype(np.float32)
    weights, exponents = np.array([weight], np.float32), np.array([exponent], np.int32)
    row = np.zeros(1, np.int32)
    wanted = [exact(float(value), float(weights[0]), exponent) for value in outputs[0]]
    assert sums_oracle.add(outputs, weights, row, exponents, 1)[0].tolist() == wanted
    assert sum_outputs(outputs, weights, row, exponents)[0].tolist() == wanted


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 6), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_no_split_among_workers_changes_a_bit(seed: int, n_pairs: int, n_rows: int, n_workers: int) -> None:
    outputs, weights, pair_rows, exponents = rows_of(seed, n_pairs, n_rows)
    if np.bincount(pair_rows).max() > MAX_PAIRS_OF_ROW:
        pair_rows = (np.arange(n_pairs) % n_rows).astype(np.int32)[:n_pairs]
    if np.bincount(pair_rows).max() > MAX_PAIRS_OF_ROW:
        return
    whole = sum_outputs(outputs, weights, pair_rows, exponents)
    owner = np.random.default_rng(seed).integers(0, n_workers, n_pairs)
    total = np.zeros_like(whole)
    for worker in np.random.default_rng(seed + 1).permutation(n_workers):
        mine = owner == worker
        total += sum_outputs(outputs[mine], weights[mine], pair_rows[mine], exponents)
    assert np.array_equal(total, whole)
    assert np.array_equal(sums_oracle.add(outputs, weights, pair_rows, exponents, n_rows), whole)


def test_the_largest_sum_fits() -> None:
    n = MAX_PAIRS_OF_ROW
    outputs = np.full((n, D), 3e38, np.float32)
    outputs[:, 1] = -3e38
    total = sum_outputs(outputs, np.ones(n, np.float32), np.zeros(n, np.int32), np.zeros(1, np.int32))
    assert total[0, :2].tolist() == [n << 26, -(n << 26)]
    assert np.array_equal(unpack_sums(pack_sums(total), 1, D), total)


@pytest.mark.parametrize("bits", [0, 1, 7, 8, 11, 12, 15, 16, 23, 24, 30, 31])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_block_takes_the_smallest_width_on_either_side_of_each_limit(bits: int, sign: int) -> None:
    for value in {sign * ((1 << bits) - 1), -(1 << bits) if sign < 0 else (1 << bits) - 1}:
        block = np.zeros((1, D), np.int32)
        block[0, 77] = value
        packed = pack_sums(block)
        assert packed.tobytes() == sums_oracle.pack(block)
        low = next(w for w in (0, 8, 12, 16, 24, 32) if (-(1 << w >> 1) <= value < 1 << w >> 1) or w == value == 0)
        assert (packed[0], len(packed)) == (low, 1 + 32 * low)
        assert np.array_equal(unpack_sums(packed, 1, D), block)


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 3), st.integers(0, 31))
@settings(max_examples=60, deadline=None)
def test_packing_loses_nothing(seed: int, n_rows: int, n_blocks: int, bits: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(-(1 << bits), 1 << bits, (n_rows, n_blocks * D), endpoint=False).astype(np.int32)
    values[rng.random(values.shape) < 0.3] = 0
    packed = pack_sums(values)
    assert packed.tobytes() == sums_oracle.pack(values)
    assert np.array_equal(unpack_sums(packed, *values.shape), values)
    assert np.array_equal(sums_oracle.unpack(packed.tobytes(), *values.shape), values)


def test_bytes_that_nobody_packs_are_refused() -> None:
    values = np.arange(2 * D, dtype=np.int32).reshape(1, -1)
    packed = pack_sums(values)
    too_wide = np.concatenate([np.array([16], np.uint8), np.zeros(512, np.uint8)])
    unknown = np.array([7, *[0] * 224], np.uint8)
    for wrong, rows in ((packed[:-1], 1), (packed[:1], 1), (packed[:0], 1), (np.append(packed, np.uint8(0)), 1)):
        with pytest.raises(KernelError, match="packed sums"):
            unpack_sums(wrong, rows, 2 * D)
        with pytest.raises(KernelError, match="packed sums"):
            sums_oracle.unpack(wrong.tobytes(), rows, 2 * D)
    for wrong in (too_wide, unknown):
        with pytest.raises(KernelError, match="packed sums"):
            unpack_sums(wrong, 1, D)
        with pytest.raises(KernelError, match="packed sums"):
            sums_oracle.unpack(wrong.tobytes(), 1, D)


@given(st.binary(max_size=1200))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_refused_or_are_what_pack_writes(data: bytes) -> None:
    packed = np.frombuffer(data, np.uint8)
    try:
        values = unpack_sums(packed, 1, D)
    except KernelError:
        with pytest.raises(KernelError):
            sums_oracle.unpack(data, 1, D)
    else:
        assert pack_sums(values).tobytes() == data


@pytest.mark.parametrize("exponent", [-180, -150, -149, -127, -100, -3, 0, 90, 97, 98, 127])
def test_values_of_sums(exponent: int) -> None:
    rng = np.random.default_rng(exponent & 0xFF)
    values = rng.integers(-(1 << 31) + 1, 1 << 31, (2, D)).astype(np.int32)
    values[:, :8] = [0, 1, -1, (1 << 24) + 1, -(1 << 24) - 1, (1 << 25) + 2, (1 << 25) + 6, -31 << 26]
    exponents = np.full(2, exponent, np.int32)
    ours = sums_to_float(values, exponents)
    assert np.array_equal(ours.view(np.uint32), sums_oracle.to_float(values, exponents).view(np.uint32))
    with np.errstate(over="ignore", under="ignore"):
        plain = np.ldexp(values.astype(np.float64), exponent).astype(np.float32)
    is_plain = np.isfinite(plain) & (np.abs(plain) >= 2.0**-126)
    assert np.array_equal(ours[is_plain], plain[is_plain])
    assert np.isfinite(ours).all() and not np.signbit(ours[ours == 0]).any()


def test_requests_that_cannot_be_summed_name_the_value() -> None:
    outputs, weights = np.ones((2, D), np.float32), np.ones(2, np.float32)
    rows, exponents = np.array([0, 1], np.int32), np.zeros(2, np.int32)
    wrong = {
        "weight 1 is not finite": (outputs, np.array([1, np.nan], np.float32), rows, exponents),
        "exponents are 0 to 128": (outputs, weights, rows, np.array([0, 128], np.int32)),
        "exponents are -181 to 0": (outputs, weights, rows, np.array([0, -181], np.int32)),
        "rows 0 to 2": (outputs, weights, np.array([0, 2], np.int32), exponents),
        "rows -1 to 0": (outputs, weights, np.array([0, -1], np.int32), exponents),
        "1 outputs and 2 pairs": (outputs[:1], weights, rows, exponents),
        "weights are float32": (outputs, weights[:1], rows, exponents),
    }
    for message, arguments in wrong.items():
        with pytest.raises(KernelError, match=message):
            sum_outputs(*arguments)
    n = MAX_PAIRS_OF_ROW + 1
    with pytest.raises(KernelError, match=f"a row has {n} pairs"):
        sum_outputs(np.ones((n, D), np.float32), np.ones(n, np.float32), np.zeros(n, np.int32), exponents[:1])
    with pytest.raises(KernelError, match="multiple of 256"):
        pack_sums(np.zeros((1, 255), np.int32))
    assert sums.packed_bound(2, 512) == 2 * 2 * 1025


def test_without_the_library_numpy_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, weights, pair_rows, exponents = rows_of(9, 12, 3)
    with_c = sum_outputs(outputs, weights, pair_rows, exponents)
    packed, values = pack_sums(with_c), sums_to_float(with_c, exponents)
    monkeypatch.setattr(native, "available", lambda: False)
    assert np.array_equal(sum_outputs(outputs, weights, pair_rows, exponents), with_c)
    assert np.array_equal(pack_sums(with_c), packed)
    assert np.array_equal(unpack_sums(packed, 3, D), with_c)
    assert np.array_equal(sums_to_float(with_c, exponents), values)
