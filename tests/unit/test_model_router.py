"""Each architecture's router against its reference, written out in plain Python, one row at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backbone.engine.model.architectures import read_config
from backbone.engine.ops.model_config import MoEConfig, RouterConfig
from backbone.engine.ops.torch_ops import TorchOps
from tests.oracles.tiny_layout import ARCHITECTURES, TinyShape, tiny_metadata

OPS = TorchOps(torch.float64)
Reference = Callable[[Sequence[float], Sequence[float], int], tuple[list[int], list[float]]]


def softmax(logits: Sequence[float]) -> list[float]:
    highest = max(logits)
    exps = [math.exp(value - highest) for value in logits]
    return [value / sum(exps) for value in exps]


def sigmoid(logits: Sequence[float]) -> list[float]:
    return [1 / (1 + math.exp(-value)) for value in logits]


def highest(scores: Sequence[float], n: int) -> list[int]:
    """Places of the n highest, ties to the lower place."""
    return sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:n]


def softmax_normalised(logits: Sequence[float], _bias: Sequence[float], n: int) -> tuple[list[int], list[float]]:
    """Qwen3-MoE, Qwen3.5-MoE, Mixtral: the chosen probabilities sum to 1."""
    scores = softmax(logits)
    ids = highest(scores, n)
    return ids, [scores[expert] / sum(scores[e] for e in ids) for expert in ids]


def softmax_plain(logits: Sequence[float], _bias: Sequence[float], n: int) -> tuple[list[int], list[float]]:
    """Qwen2-MoE, OLMoE: probabilities among all experts."""
    scores = softmax(logits)
    ids = highest(scores, n)
    return ids, [scores[expert] for expert in ids]


def sigmoid_biased(logits: Sequence[float], bias: Sequence[float], n: int) -> tuple[list[int], list[float]]:
    """GLM-4.5: chosen by biased scores, weighted by the scores themselves, normalised, times 1.5."""
    scores = sigmoid(logits)
    ids = highest([score + b for score, b in zip(scores, bias, strict=True)], n)
    return ids, [1.5 * scores[expert] / sum(scores[e] for e in ids) for expert in ids]


def sigmoid_grouped(logits: Sequence[float], bias: Sequence[float], n: int) -> tuple[list[int], list[float]]:
    """DeepSeek-V3's rule: of 4 groups the 2 whose best two biased scores have the largest sum."""
    scores = sigmoid(logits)
    ranked = [score + b for score, b in zip(scores, bias, strict=True)]
    size = len(ranked) // 4
    groups = [ranked[group * size : (group + 1) * size] for group in range(4)]
    kept = highest([sum(sorted(group)[-2:]) for group in groups], 2)
    ids = highest([value if place // size in kept else -math.inf for place, value in enumerate(ranked)], n)
    return ids, [1.5 * scores[expert] / sum(scores[e] for e in ids) for expert in ids]


REFERENCES: dict[str, Reference] = {
    "qwen3moe": softmax_normalised,
    "qwen35moe": softmax_normalised,
    "llama": softmax_normalised,
    "qwen2moe": softmax_plain,
    "olmoe": softmax_plain,
    "glm4moe": sigmoid_biased,
}


def router_of(architecture: str, shape: TinyShape) -> RouterConfig:
    metadata = {f"{architecture}.{key}": value for key, value in tiny_metadata(architecture, shape).items()}
    ffn = read_config({"general.architecture": architecture, **metadata}).layers[-1].ffn
    assert isinstance(ffn, MoEConfig)
    return ffn.router


def check(router: RouterConfig, reference: Reference, logits: np.ndarray, bias: np.ndarray) -> None:
    biased = torch.from_numpy(bias) if router.has_selection_bias else None
    routing = OPS.route(torch.from_numpy(logits), router, biased)
    assert routing.expert_ids.dtype == torch.int64
    for row, ids, weights in zip(logits.tolist(), routing.expert_ids.tolist(), routing.weights.tolist(), strict=True):
        expected_ids, expected_weights = reference(row, bias.tolist(), router.n_used)
        assert ids == expected_ids
        assert weights == pytest.approx(expected_weights, rel=1e-12)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_router_does_what_its_reference_does(architecture: str) -> None:
    generator = np.random.default_rng(5)
    router = router_of(architecture, TinyShape())
    logits = generator.standard_normal((50, router.n_expert)) * 3
    check(router, REFERENCES[architecture], logits, generator.standard_normal(router.n_expert) * 0.3)


def test_groups_limit_the_choice() -> None:
    generator = np.random.default_rng(6)
    router = router_of("glm4moe", TinyShape(n_expert_group=4, n_expert_group_used=2))
    check(router, sigmoid_grouped, generator.standard_normal((50, 16)), generator.standard_normal(16) * 0.3)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ARCHITECTURES), st.lists(st.integers(-2, 2), min_size=16, max_size=16))
def test_ties_go_to_the_lower_expert(architecture: str, logits: list[int]) -> None:
    router = router_of(architecture, TinyShape())
    check(router, REFERENCES[architecture], np.array([logits], np.float64), np.zeros(16))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_rows_experts_do_not_depend_on_the_batch(architecture: str) -> None:
    """Bit for bit in float32, for logits that are many ties."""
    router = router_of(architecture, TinyShape())
    logits = torch.from_numpy(np.random.default_rng(8).integers(-2, 3, (33, 16)).astype(np.float32))
    bias = torch.zeros(16) if router.has_selection_bias else None
    ops = TorchOps(torch.float32)
    together = ops.route(logits, router, bias)
    for row in range(33):
        single = ops.route(logits[row : row + 1], router, bias)
        assert torch.equal(single.expert_ids[0], together.expert_ids[row])


def test_weights_of_vanishing_scores_stay_finite() -> None:
    router = router_of("glm4moe", TinyShape())
    weights = TorchOps(torch.float32).route(torch.full((1, 16), -200.0), router, torch.zeros(16)).weights
    assert bool(torch.isfinite(weights).all())
