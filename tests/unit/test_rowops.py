"""The float row operations: near float64, the same bits on every build, thread count, batch and chunking."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.errors import KernelError
from kvasir.kernels import native
from kvasir.kernels.api import Floats
from kvasir.kernels.oracle.rowops import NumpyRowOps
from kvasir.kernels.oracle.rowops import exp as numpy_exp
from kvasir.kernels.rowops import NativeRowOps, SegmentNumbers, row_ops

BUILDS = [NativeRowOps(isa, n_threads) for isa in native.load().isa_names for n_threads in (1, 2, 3)]
OPS = BUILDS[0]
Doubles = npt.NDArray[np.float64]


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same_bits(a: Floats, b: Floats) -> bool:
    return a.shape == b.shape and bool((a.view(np.uint32) == b.view(np.uint32)).all())


def ulps(found: Floats, wanted: Doubles) -> float:
    """The largest distance in units in the last place of the right result."""
    return float((np.abs(found - wanted) / np.spacing(np.abs(wanted).astype(np.float32))).max())


def agree(compute: Callable[[NativeRowOps], Floats]) -> Floats:
    """What every build gives, after checking that it is the same."""
    results = [compute(ops) for ops in BUILDS]
    assert all(same_bits(result, results[0]) for result in results)
    return results[0]


@pytest.mark.parametrize("n_cols", [1, 5, 16, 31, 256, 300])
def test_matmul(n_cols: int) -> None:
    x, w = normal(9, n_cols), normal(21, n_cols, seed=1)
    product = agree(lambda ops: ops.matmul(x, w))
    assert np.abs(product - x.astype(np.float64) @ w.astype(np.float64).T).max() < 2e-6 * n_cols**0.5 + 1e-6
    assert same_bits(product, NumpyRowOps().matmul(x, w))
    for n in range(1, 9):
        assert same_bits(OPS.matmul(x[:n], w), product[:n])
    assert same_bits(OPS.matmul(x, w[3:10]), product[:, 3:10])


def test_a_large_matmul_is_spread_over_threads_and_tiles_with_the_same_bits() -> None:
    x, w = normal(150, 96), normal(700, 96, seed=1)
    product = agree(lambda ops: ops.matmul(x, w))
    assert same_bits(product[77:78], OPS.matmul(x[77:78], w))
    assert same_bits(product, NumpyRowOps().matmul(x, w))


def test_exp_is_within_one_unit_over_its_whole_range() -> None:
    x = np.concatenate([np.linspace(-87.3, 88.7, 200_003), normal(5000) * 1e-3]).astype(np.float32)
    found = agree(lambda ops: ops.exp(x))
    assert ulps(found, np.exp(x.astype(np.float64))) < 1.1
    assert same_bits(found, numpy_exp(x))


def test_exp_at_the_edges() -> None:
    x = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 88.8, 89.5, -103, -103.9, -104.5, 1e-40], np.float32)
    found = agree(lambda ops: ops.exp(x))
    with np.errstate(over="ignore"):
        wanted = np.exp(x.astype(np.float64)).astype(np.float32)
    assert np.isnan(found[4])
    keep = ~np.isnan(x)
    np.testing.assert_allclose(found[keep], wanted[keep], rtol=2e-7, atol=1.5e-45)
    assert same_bits(found[keep], numpy_exp(x)[keep])


def sigmoid(x: Doubles) -> Doubles:
    return np.asarray(1 / (1 + np.exp(-x)))


@pytest.mark.parametrize(
    ("name", "wanted", "tolerance"),
    [
        ("sigmoid", sigmoid, 3.0),
        ("silu", lambda x: x * sigmoid(x), 3.5),
        ("softplus", lambda x: np.logaddexp(0, x), 3.5),
    ],
)
def test_activations(name: str, wanted: Callable[[Doubles], Doubles], tolerance: float) -> None:
    x = np.linspace(-80, 80, 50_001).astype(np.float32)
    found = agree(lambda ops: getattr(ops, name)(x))
    assert ulps(found, wanted(x.astype(np.float64))) < tolerance
    one_by_one = np.concatenate([getattr(OPS, name)(x[i : i + 1]) for i in range(0, 50_001, 1000)])
    assert same_bits(one_by_one, found[::1000])


def test_activations_of_large_values() -> None:
    x = np.array([-1e30, 1e30, -200, 200], np.float32)
    np.testing.assert_array_equal(OPS.sigmoid(x), np.array([0, 1, 0, 1], np.float32))
    np.testing.assert_array_equal(OPS.silu(x), np.array([-0.0, 1e30, -0.0, 200], np.float32))
    np.testing.assert_array_equal(OPS.softplus(x), np.array([0, 1e30, 0, 200], np.float32))


@given(st.integers(1, 40), st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_silu_mul_has_the_bits_of_its_numpy_twin(n: int, seed: int) -> None:
    gate, up = normal(3, n, seed=seed) * 8, normal(3, n, seed=seed + 1)
    found = agree(lambda ops: ops.silu_mul(gate, up))
    assert same_bits(found, NumpyRowOps().silu_mul(gate, up))
    assert same_bits(OPS.silu_mul(gate[1:2], up[1:2]), found[1:2])


@pytest.mark.parametrize("d", [1, 7, 64, 100, 128])
def test_norms(d: int) -> None:
    x, weight = normal(6, 3, d) * 4, normal(d, seed=1)
    exact = x.astype(np.float64)
    rms = agree(lambda ops: ops.rms_norm(x, weight, 1e-6))
    np.testing.assert_allclose(
        rms, exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-6) * weight, rtol=2e-6, atol=1e-7
    )
    l2 = agree(lambda ops: ops.l2_norm(x, 1e-6))
    np.testing.assert_allclose(l2, exact / np.sqrt((exact**2).sum(-1, keepdims=True) + 1e-6), rtol=2e-6, atol=1e-7)
    for t in range(6):
        assert same_bits(OPS.rms_norm(x[t], weight, 1e-6), rms[t])


def test_combine_adds_in_selection_order() -> None:
    partials, weights = normal(7, 5, 33), normal(7, 5, seed=1)
    total = weights[:, :1] * partials[:, 0]
    for j in range(1, 5):
        total = total + weights[:, j : j + 1] * partials[:, j]
    assert same_bits(agree(lambda ops: ops.combine(partials, weights)), total)


def float64_attention(q: Floats, keys: Floats, values: Floats, segments: Sequence[SegmentNumbers]) -> Doubles:
    out = np.zeros((*q.shape[:2], values.shape[3]))
    group = q.shape[1] // keys.shape[1]
    for slot, first, n, position in segments:
        for t in range(n):
            for head in range(q.shape[1]):
                k = keys[slot, head // group, : position + t + 1].astype(np.float64)
                scores = k @ q[first + t, head] * 0.3
                powers = np.exp(scores - scores.max())
                out[first + t, head] = powers @ values[slot, head // group, : position + t + 1] / powers.sum()
    return out


@pytest.mark.parametrize(
    ("n_head", "n_kv_head", "d", "d_value"), [(4, 2, 64, 64), (6, 1, 20, 36), (3, 3, 16, 128), (32, 2, 24, 40)]
)
def test_attention_in_any_chunks_and_batches(n_head: int, n_kv_head: int, d: int, d_value: int) -> None:
    n = 70
    q, keys = normal(n + 9, n_head, d), normal(3, n_kv_head, 80, d, seed=1)
    values = normal(3, n_kv_head, 80, d_value, seed=2)
    keys[:, :, n:], values[:, :, n:] = np.nan, np.nan  # what a sequence has not reached must not be touched
    segments = [(2, 9, n, 0), (0, 0, 9, 40)]
    whole = agree(lambda ops: ops.attention(q, keys, values, segments, 0.3))
    np.testing.assert_allclose(whole, float64_attention(q, keys, values, segments), atol=2e-6)
    for cuts in ([0, 70], [0, 1, 2, 69, 70], [0, 13, 40, 70], list(range(71))):
        parts = [
            OPS.attention(np.ascontiguousarray(q[9 + a : 9 + b]), keys, values, [(2, 0, b - a, a)], 0.3)
            for a, b in itertools.pairwise(cuts)
        ]
        assert same_bits(np.concatenate(parts), whole[9:])


@pytest.mark.parametrize(("channels", "width"), [(600, 4), (5, 2), (300, 1)])
def test_convolution_in_any_chunks(channels: int, width: int) -> None:
    x, weight, start = normal(30, channels), normal(channels, width, seed=1), normal(2, width - 1, channels, seed=2)

    def run(ops: NativeRowOps, cuts: Sequence[int]) -> tuple[Floats, Floats]:
        state = start.copy()
        parts = [
            ops.causal_conv(np.ascontiguousarray(x[a:b]), weight, state, [(1, 0, b - a, a)])
            for a, b in itertools.pairwise(cuts)
        ]
        return np.concatenate(parts), state

    whole, state = run(OPS, [0, 30])
    inputs = np.concatenate([start[1], x]).astype(np.float64)
    exact = sum(inputs[w : w + 30] * weight[:, w] for w in range(width))
    np.testing.assert_allclose(whole, exact, atol=2e-6)
    assert same_bits(state[0], start[0])
    assert same_bits(state[1], np.concatenate([start[1], x])[30:])
    for ops in BUILDS:
        for cuts in ([0, 30], [0, 1, 2, 30], [0, 11, 30], list(range(31))):
            assert all(same_bits(a, b) for a, b in zip(run(ops, cuts), (whole, state), strict=True))


@pytest.mark.parametrize(("d_key", "d_value"), [(128, 128), (16, 40), (24, 7)])
def test_delta_rule_in_any_chunks(d_key: int, d_value: int) -> None:
    n, n_key_head, n_value_head = 20, 2, 4
    q, k = normal(n, n_key_head, d_key) * 0.1, normal(n, n_key_head, d_key, seed=1) * 0.1
    v, start = normal(n, n_value_head, d_value, seed=2), normal(3, n_value_head, d_value, d_key, seed=3)
    log_decay, beta = -np.abs(normal(n, n_value_head, seed=4)), np.abs(normal(n, n_value_head, seed=5)) / 3

    def run(ops: NativeRowOps, cuts: Sequence[int]) -> tuple[Floats, Floats]:
        state, parts = start.copy(), []
        for a, b in itertools.pairwise(cuts):
            part = [np.ascontiguousarray(tensor[a:b]) for tensor in (q, k, v, log_decay, beta)]
            parts.append(ops.delta_rule(part[0], part[1], part[2], part[3], part[4], state, [(1, 0, b - a, a)]))
        return np.concatenate(parts), state

    whole, state = run(OPS, [0, n])
    exact, outputs = start[1].astype(np.float64), []
    for t in range(n):
        heads = np.arange(n_value_head) % n_key_head
        exact = np.exp(log_decay[t].astype(np.float64))[:, None, None] * exact
        delta = (v[t] - np.einsum("hvk,hk->hv", exact, k[t, heads])) * beta[t][:, None]
        exact = exact + delta[:, :, None] * k[t, heads][:, None]
        outputs.append(np.einsum("hvk,hk->hv", exact, q[t, heads]))
    np.testing.assert_allclose(whole, np.stack(outputs), atol=3e-6)
    np.testing.assert_allclose(state[1], exact, atol=3e-6)
    assert same_bits(state[[0, 2]], start[[0, 2]])
    for ops in BUILDS:
        for cuts in ([0, n], [0, 1, n], [0, 7, 9, n], list(range(n + 1))):
            assert all(same_bits(a, b) for a, b in zip(run(ops, cuts), (whole, state), strict=True))


def test_sequences_of_one_batch_do_not_touch_each_other() -> None:
    q = normal(6, 2, 16)
    v, gates = normal(6, 2, 16, seed=1), -np.abs(normal(6, 2, seed=2))
    together, alone = normal(3, 2, 16, 16, seed=3), normal(3, 2, 16, 16, seed=3)
    both = OPS.delta_rule(q, q, v, gates, gates, together, [(2, 4, 2, 0), (0, 0, 4, 0)])
    for slot, first, n in ((0, 0, 4), (2, 4, 2)):
        part = [np.ascontiguousarray(tensor[first : first + n]) for tensor in (q, q, v, gates, gates)]
        out = OPS.delta_rule(part[0], part[1], part[2], part[3], part[4], alone, [(slot, 0, n, 0)])
        assert same_bits(out, both[first : first + n])
    assert same_bits(alone, together)


@pytest.mark.parametrize(
    ("segments", "said"),
    [
        ([(0, 0, 3, 0)], "cover 3 rows of 4"),
        ([(0, 0, 4, 5)], "ends at position 9"),
        ([(2, 0, 4, 0)], "slot 2"),
        ([(-1, 0, 4, 0)], "slot -1"),
        ([(0, 0, 2, 0), (0, 2, 2, 2)], "same slot"),
        ([(0, 0, 2, 0), (1, 1, 3, 0)], "row 2 comes next"),
        ([(0, 0, 4, -1)], "position -1"),
        ([(0, 0, 0, 0), (1, 0, 4, 0)], "not valid"),
        ([], "cover 0 rows"),
    ],
)
def test_segments_that_do_not_fit_are_refused(segments: list[SegmentNumbers], said: str) -> None:
    cache = normal(2, 1, 8, 16)
    with pytest.raises(KernelError, match=said):
        OPS.attention(normal(4, 2, 16), cache, cache, segments, 1.0)


def test_shapes_types_and_layouts_are_checked() -> None:
    x = normal(4, 32)
    bad: list[Callable[[], Floats]] = [
        lambda: OPS.matmul(x, normal(3, 31)),
        lambda: OPS.matmul(x.astype(np.float64), normal(3, 32)),
        lambda: OPS.matmul(x[:, ::2], normal(3, 16)),
        lambda: OPS.matmul(x[0], normal(3, 32)),
        lambda: OPS.rms_norm(x, normal(31), 1e-6),
        lambda: OPS.silu_mul(x, normal(4, 31)),
        lambda: OPS.combine(normal(4, 2, 8), normal(4, 3)),
        lambda: OPS.combine(normal(4, 0, 8), normal(4, 0)),
        lambda: OPS.causal_conv(x, normal(32, 17), normal(1, 16, 32), [(0, 0, 4, 0)]),
        lambda: OPS.causal_conv(x, normal(32, 4), normal(1, 2, 32), [(0, 0, 4, 0)]),
        lambda: OPS.attention(normal(4, 3, 16), normal(1, 2, 8, 16), normal(1, 2, 8, 16), [(0, 0, 4, 0)], 1.0),
        lambda: NumpyRowOps().matmul(x, normal(3, 31)),
        lambda: NumpyRowOps().silu_mul(x, normal(4, 31)),
    ]
    for call in bad:
        with pytest.raises(KernelError):
            call()
    with pytest.raises(KernelError, match="n_threads is 0"):
        NativeRowOps(n_threads=0)


def test_no_rows_give_no_results() -> None:
    nothing = normal(0, 32)
    assert OPS.matmul(nothing, normal(3, 32)).shape == (0, 3)
    assert OPS.rms_norm(nothing, normal(32), 1e-6).shape == (0, 32)
    assert OPS.silu(nothing).shape == (0, 32)
    assert OPS.combine(normal(0, 2, 8), normal(0, 2)).shape == (0, 8)


def test_numpy_is_used_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVASIR_ISA", "numpy")
    assert isinstance(row_ops(), NumpyRowOps)
    monkeypatch.delenv("KVASIR_ISA")
    assert isinstance(row_ops(), NativeRowOps)
