"""The dense path with fixed bits against the torch oracle, and a row's independence of its batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quant
from torch import Tensor

from backbone.engine.ops import KVLayer, Linear, Segment
from backbone.engine.stable_ops import StableOps
from backbone.engine.torch_ops import TorchOps
from kvasir.errors import KernelError
from kvasir.experts import FloatRows, WeightMatrix
from kvasir.kernels import native
from tests.oracles.quantise import quantise

EXACT = (Quant.Q4_K, Quant.Q5_K, Quant.Q6_K, Quant.Q8_0)
BUILDS = [StableOps(isa, n_threads) for isa in native.load().isa_names for n_threads in (1, 3)]
OPS, ORACLE = BUILDS[0], TorchOps(torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def matrix(quant_type: Quant, n_out: int, n_in: int, seed: int = 1) -> WeightMatrix:
    values: FloatRows = (normal(n_out, n_in, seed=seed) / n_in**0.5).numpy()
    return WeightMatrix(quant_type, n_out, n_in, quantise(values, quant_type).reshape(-1))


def agree(compute: Callable[[StableOps], Tensor]) -> Tensor:
    """What every build gives, after checking that it is the same."""
    results = [compute(ops) for ops in BUILDS]
    assert all(torch.equal(result, results[0]) for result in results)
    assert results[0].dtype == torch.float32
    return results[0]


@pytest.mark.parametrize("quant_type", [*EXACT, Quant.F32, Quant.F16, Quant.BF16, Quant.Q5_1])
def test_a_linear_of_any_type(quant_type: Quant) -> None:
    stored, bias = matrix(quant_type, 40, 512), normal(40, seed=2)
    x = normal(37, 512)
    found = agree(lambda ops: ops.linear(x, ops.make_linear(stored, bias))[0])
    exact = ORACLE.linear(x.double(), ORACLE.make_linear(stored, bias.double()))[0]
    limit = 1e-6 if quant_type not in EXACT else 2e-4 if quant_type is Quant.Q8_0 else 2e-2
    assert (found - exact).norm() < limit * exact.norm()
    linear = OPS.make_linear(stored, bias)
    for n in (1, 2, 3, 8, 33):
        assert torch.equal(OPS.linear(x[:n], linear)[0], found[:n])


def test_several_linears_of_different_kinds_share_their_rows() -> None:
    x = normal(5, 256)
    linears: list[Linear] = [
        OPS.make_linear(matrix(q, n, 256)) for q, n in ((Quant.Q4_K, 8), (Quant.F32, 3), (Quant.Q6_K, 1))
    ]
    together = OPS.linear(x, *linears)
    assert [tuple(part.shape) for part in together] == [(5, 8), (5, 3), (5, 1)]
    assert all(torch.equal(part, OPS.linear(x, linear)[0]) for part, linear in zip(together, linears, strict=True))


def test_a_k_quant_of_a_width_that_kx1_lacks_is_dequantised() -> None:
    stored = matrix(Quant.Q8_0, 6, 96)
    found = OPS.linear(normal(3, 96), OPS.make_linear(stored))[0]
    exact = ORACLE.linear(normal(3, 96).double(), ORACLE.make_linear(stored))[0]
    assert (found - exact).abs().max() < 1e-6


@pytest.mark.parametrize("quant_type", [Quant.Q6_K, Quant.F16, Quant.F32])
def test_embedding_rows_are_dequantised(quant_type: Quant) -> None:
    stored, ids = matrix(quant_type, 20, 256), torch.tensor([3, 19, 0, 3])
    assert torch.equal(OPS.embed(stored, ids), TorchOps().embed(stored, ids))
    assert OPS.embed(stored, ids[:0]).shape == (0, 256)
    for wrong in (-1, 20):
        with pytest.raises(KernelError, match="token ids"):
            OPS.embed(stored, torch.tensor([0, wrong]))


def test_row_operations_agree_with_the_oracle() -> None:
    x, y, weight = normal(9, 4, 64), normal(9, 4, 64, seed=1), normal(64, seed=2)
    pairs: list[tuple[Callable[[StableOps], Tensor], Tensor]] = [
        (lambda ops: ops.rms_norm(x, weight, 1e-6), ORACLE.rms_norm(x.double(), weight.double(), 1e-6)),
        (lambda ops: ops.l2_norm(x, 1e-6), ORACLE.l2_norm(x.double(), 1e-6)),
        (lambda ops: ops.silu_mul(x, y), ORACLE.silu_mul(x.double(), y.double())),
        (lambda ops: ops.silu(x), ORACLE.silu(x.double())),
        (lambda ops: ops.sigmoid(x), ORACLE.sigmoid(x.double())),
        (lambda ops: ops.softplus(x), ORACLE.softplus(x.double())),
        (lambda ops: ops.softmax(x), ORACLE.softmax(x.double())),
        (lambda ops: ops.combine(x, y[:, :, 0]), ORACLE.combine(x.double(), y[:, :, 0].double())),
    ]
    for compute, exact in pairs:
        assert (agree(compute) - exact).abs().max() < 3e-6


@pytest.mark.parametrize("adjacent_pairs", [False, True])
def test_rope_agrees_with_the_oracle(adjacent_pairs: bool) -> None:
    x, cos, sin = normal(9, 4, 64), normal(9, 16, seed=3).cos(), normal(9, 16, seed=3).sin()
    found = agree(lambda ops: ops.rope(x, cos, sin, adjacent_pairs=adjacent_pairs))
    exact = ORACLE.rope(x.double(), cos.double(), sin.double(), adjacent_pairs=adjacent_pairs)
    assert (found - exact).abs().max() < 3e-6


def test_attention_agrees_with_the_oracle_in_a_mixed_batch() -> None:
    keys, values = normal(3, 40, 2, 32, seed=1), normal(3, 40, 2, 48, seed=2)
    q, segments = normal(25, 6, 32), [Segment(2, 0, 20, 7), Segment(0, 20, 1, 39), Segment(1, 21, 4, 0)]
    found = agree(lambda ops: ops.attention(q, KVLayer(keys, values), segments, 0.2))
    exact = ORACLE.attention(q.double(), KVLayer(keys.double(), values.double()), segments, 0.2)
    assert (found - exact).abs().max() < 2e-6
    alone = OPS.attention(q[20:21], KVLayer(keys, values), [Segment(0, 0, 1, 39)], 0.2)
    assert torch.equal(alone, found[20:21])


def test_recurrent_operations_update_their_state_in_place() -> None:
    segments = [Segment(1, 0, 5, 0), Segment(0, 5, 3, 9)]
    x, weight, conv_state = normal(8, 40), normal(40, 4, seed=1), normal(2, 3, 40, seed=2)
    exact_conv = conv_state.double()
    found = OPS.causal_conv(x, weight, conv_state, segments)
    exact = ORACLE.causal_conv(x.double(), weight.double(), exact_conv, segments)
    assert (found - exact).abs().max() < 2e-6
    assert torch.equal(conv_state.double(), exact_conv)
    q, k, v = normal(8, 2, 16) / 4, normal(8, 2, 16, seed=1) / 4, normal(8, 4, 24, seed=2)
    decay, beta, state = -normal(8, 4, seed=3).abs(), normal(8, 4, seed=4).sigmoid(), normal(2, 4, 24, 16, seed=5)
    exact_state = state.double()
    found = OPS.delta_rule(q, k, v, decay, beta, state, segments)
    inputs = [tensor.double() for tensor in (q, k, v, decay, beta)]
    exact = ORACLE.delta_rule(inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], exact_state, segments)
    assert (found - exact).abs().max() < 2e-6
    assert (state - exact_state).abs().max() < 2e-6


def test_state_that_does_not_lie_together_is_refused() -> None:
    state = normal(2, 40, 3).transpose(1, 2)
    with pytest.raises(KernelError, match="state is not contiguous"):
        OPS.causal_conv(normal(1, 40), normal(40, 4), state, [Segment(0, 0, 1, 0)])


def test_rows_that_are_not_finite_are_refused_by_quantised_linears() -> None:
    x = normal(2, 256)
    x[1, 7] = float("inf")
    with pytest.raises(KernelError, match="row 1 holds inf at 7"):
        OPS.linear(x, OPS.make_linear(matrix(Quant.Q4_K, 4, 256)))


def test_without_the_library_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda: False)
    with pytest.raises(KernelError, match=r"kvasir\.kernels\.build.*--dense float"):
        StableOps()
