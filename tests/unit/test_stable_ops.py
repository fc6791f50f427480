"""The dense path with fixed bits against the torch oracle, and a row's independence of its batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quant
from torch import Tensor

from backbone.engine.ops.interface import HeadForm, KVLayer, Linear, RopeTable, Segment
from backbone.engine.ops.model_config import RopeConfig, RouterConfig, ScoreFunction
from backbone.engine.ops.stable_ops import StableOps
from backbone.engine.ops.torch_ops import TorchOps
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
        (lambda ops: ops.combine(x, y[:, :, 0]), ORACLE.combine(x.double(), y[:, :, 0].double())),
    ]
    for compute, exact in pairs:
        assert (agree(compute) - exact).abs().max() < 3e-6


D_HEAD, D_VALUE, N_CTX = 32, 48, 40
SEGMENTS = [Segment(2, 0, 20, 7), Segment(0, 20, 1, 39), Segment(1, 21, 4, 0)]


def rope_table(n_rotated: int = 16) -> RopeTable:
    return RopeTable(RopeConfig(n_dims=n_rotated, base=1e4, has_adjacent_pairs=False), N_CTX, torch.float32)


def in_float64(table: RopeTable) -> RopeTable:
    exact = copy.copy(table)
    exact.cos, exact.sin = table.cos.double(), table.sin.double()
    return exact


def projected(n_head: int = 6, n_kv_head: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    widths = (n_head * D_HEAD, n_kv_head * D_HEAD, n_kv_head * D_VALUE)
    query, key, value = (normal(25, width, seed=seed) for seed, width in enumerate(widths))
    return query, key, value


def cache_of(dtype: torch.dtype = torch.float32) -> KVLayer:
    return KVLayer(normal(3, 2, N_CTX, D_HEAD, seed=8).to(dtype), normal(3, 2, N_CTX, D_VALUE, seed=9).to(dtype))


@pytest.mark.parametrize("has_adjacent_pairs", [False, True])
@pytest.mark.parametrize("n_norm", [0, 1, 6])
def test_attention_agrees_with_the_oracle_in_a_mixed_batch(n_norm: int, has_adjacent_pairs: bool) -> None:
    """Without head norms, with a norm of each head, and of all heads of a row."""
    norms = [normal(n * D_HEAD, seed=n) if n else None for n in (n_norm, min(n_norm, 2))]
    form = HeadForm(norms[0], norms[1], 1e-6, has_adjacent_pairs, 0.2)
    doubled = [None if norm is None else norm.double() for norm in norms]
    rows, rope, exact_cache = projected(), rope_table(), cache_of(torch.float64)
    query, key, value = (x.double() for x in rows)
    exact = ORACLE.attend(
        query,
        key,
        value,
        HeadForm(doubled[0], doubled[1], 1e-6, has_adjacent_pairs, 0.2),
        in_float64(rope),
        exact_cache,
        SEGMENTS,
    )
    caches = {ops: cache_of() for ops in BUILDS}
    found = agree(lambda ops: ops.attend(*rows, form, rope, caches[ops], SEGMENTS))
    assert (found - exact).abs().max() < 1e-5
    for cache in caches.values():
        assert torch.equal(cache.keys, caches[OPS].keys)
        assert (cache.keys - exact_cache.keys).abs().max() < 1e-5
        assert torch.equal(cache.values.double(), exact_cache.values)
    query, key, value = (x[20:21] for x in rows)
    assert torch.equal(OPS.attend(query, key, value, form, rope, cache_of(), [Segment(0, 0, 1, 39)]), found[20:21])


def test_projected_rows_that_do_not_fit_the_cache_are_refused() -> None:
    query, key, value = projected()
    form, rope = HeadForm(None, None, 1e-6, False, 0.2), rope_table()
    odd_norm = HeadForm(normal(7), None, 1e-6, False, 0.2)
    apart = KVLayer(normal(3, N_CTX, 2, D_HEAD).transpose(1, 2), cache_of().values)
    short = RopeTable(RopeConfig(n_dims=16, base=1e4, has_adjacent_pairs=False), N_CTX - 1, torch.float32)
    refused: list[tuple[str, Callable[[], Tensor]]] = [
        ("keys", lambda: OPS.attend(query, key[:, 1:], value, form, rope, cache_of(), SEGMENTS)),
        ("values", lambda: OPS.attend(query, key, value[1:], form, rope, cache_of(), SEGMENTS)),
        ("queries of 191", lambda: OPS.attend(query[:, 1:], key, value, form, rope, cache_of(), SEGMENTS)),
        ("rotated pairs", lambda: OPS.attend(query, key, value, form, rope_table(66), cache_of(), SEGMENTS)),
        ("cosines", lambda: OPS.attend(query, key, value, form, short, cache_of(), SEGMENTS)),
        ("norms", lambda: OPS.attend(query, key, value, odd_norm, rope, cache_of(), SEGMENTS)),
        ("contiguous", lambda: OPS.attend(query, key, value, form, rope, apart, SEGMENTS)),
        ("float32 and", lambda: OPS.attend(query, key, value, form, in_float64(rope), cache_of(), SEGMENTS)),
        ("cover 24 rows", lambda: OPS.attend(query, key, value, form, rope, cache_of(), [Segment(0, 0, 24, 0)])),
        ("the cache holds 40", lambda: OPS.attend(query, key, value, form, rope, cache_of(), [Segment(0, 0, 25, 16)])),
        ("float64", lambda: OPS.attend(query.double(), key, value, form, rope, cache_of(), SEGMENTS)),
    ]
    for said, call in refused:
        with pytest.raises(KernelError, match=said):
            call()


def router(score_function: ScoreFunction, **changes: Any) -> RouterConfig:
    plain = RouterConfig(16, 4, score_function, is_normalised=True, weights_scale=1.5, has_selection_bias=False)
    return replace(plain, **changes)


ROUTERS = [
    router(ScoreFunction.SOFTMAX),
    router(ScoreFunction.SOFTMAX, is_normalised=False, weights_scale=1.0, n_used=16),
    router(ScoreFunction.SIGMOID, has_selection_bias=True),
    router(ScoreFunction.SIGMOID, has_selection_bias=True, n_group=4, n_group_used=2),
    router(ScoreFunction.SIGMOID, n_group=4, n_group_used=1, n_used=7),  # more experts than the group has
]


@pytest.mark.parametrize("config", ROUTERS)
def test_experts_are_chosen_as_in_torch(config: RouterConfig) -> None:
    """Many logits are equal: ties go to the lower expert. Weights are the same bits alone and in a batch."""
    logits = torch.from_numpy(np.random.default_rng(3).integers(-6, 7, (37, 16)).astype(np.float32)) / 4
    bias = torch.arange(16).remainder(3) / 2 if config.has_selection_bias else None
    wanted = TorchOps().route(logits, config, bias)
    ids = [ops.route(logits, config, bias).expert_ids for ops in BUILDS]
    assert all(torch.equal(found, wanted.expert_ids) for found in ids)
    weights = agree(lambda ops: ops.route(logits, config, bias).weights)
    assert (weights - wanted.weights).abs().max() < 1e-6
    for row in range(37):
        assert torch.equal(OPS.route(logits[row : row + 1], config, bias).weights, weights[row : row + 1])


def test_logits_that_are_not_numbers_still_choose_experts_that_exist() -> None:
    logits = torch.full((3, 16), float("nan"))
    logits[1, 3:] = float("inf")
    for config in ROUTERS:
        ids = OPS.route(logits, config, torch.zeros(16)).expert_ids
        assert all(sorted(set(row)) == sorted(row) and 0 <= min(row) <= max(row) < 16 for row in ids.tolist())
    with pytest.raises(KernelError, match="8 experts of 16"):
        OPS.route(logits[:, :8], ROUTERS[0], None)
    with pytest.raises(KernelError, match=r"selection bias is \[15\]"):
        OPS.route(logits, ROUTERS[2], torch.zeros(15))
    with pytest.raises(KernelError, match="cannot be chosen"):
        OPS.route(logits, router(ScoreFunction.SOFTMAX, n_used=17), None)


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
