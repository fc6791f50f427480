"""Experts that rows call together become neighbours, and a renumbered model is the same model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from django.core.management import CommandError, call_command
from hypothesis import given, settings
from hypothesis import strategies as st

from backbone.engine.dispatch.co_activation import order_experts
from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.model.batch import Batch, SlotTokens
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from kvasir.errors import ConfigError, GGUFError
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.expert_renumbering import renumber_experts
from tests.oracles.tiny_gguf import TinyModel, write_tiny

N_EXPERT = 16
GROUPS = np.random.default_rng(3).permutation(N_EXPERT).reshape(4, 4)  # experts that are called together
TOKENS = [5, 9, 200, 17, 61, 8, 8]


def calls_together(rows: Sequence[Sequence[int]]) -> np.ndarray:
    together = np.zeros((N_EXPERT, N_EXPERT), np.int64)
    for row in rows:
        together[np.ix_(row, row)] += 1
    return together


def clustered_rows(seed: int, n_rows: int = 400) -> list[list[int]]:
    """Three experts of one group and one from anywhere."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n_rows):
        group = GROUPS[rng.integers(4)]
        others = np.setdiff1d(np.arange(N_EXPERT), group)
        rows.append([*rng.choice(group, 3, replace=False).tolist(), int(rng.choice(others))])
    return rows


def test_experts_that_are_called_together_are_neighbours() -> None:
    order = order_experts(calls_together(clustered_rows(1)))
    found = {frozenset(order[start : start + 4].tolist()) for start in range(0, N_EXPERT, 4)}
    assert found == {frozenset(group.tolist()) for group in GROUPS}


def test_rows_that_were_not_counted_need_fewer_workers_too() -> None:
    order = order_experts(calls_together(clustered_rows(1)))
    place = np.empty(N_EXPERT, np.int64)
    place[order] = np.arange(N_EXPERT)
    rows = np.array(clustered_rows(2))
    needed = [np.mean([len(set(row // 4)) for row in numbered]) for numbered in (rows, place[rows])]
    assert needed[1] == pytest.approx(2.0) and needed[0] > 2.8


@settings(max_examples=30, deadline=None)
@given(n_expert=st.integers(1, 20), seed=st.integers(0, 99))
def test_any_counts_give_an_order_with_even_halves(n_expert: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 50, (n_expert, n_expert))
    together = counts + counts.T
    order = order_experts(together)
    assert sorted(order.tolist()) == list(range(n_expert))
    assert np.array_equal(order, order_experts(together))


def test_halves_have_about_the_same_traffic() -> None:
    rng = np.random.default_rng(5)
    chance = 1.0 / np.arange(1, N_EXPERT + 1)
    rows = [rng.choice(N_EXPERT, 4, replace=False, p=chance / chance.sum()).tolist() for _ in range(800)]
    together = calls_together(rows)
    order, traffic = order_experts(together), together.diagonal()
    halves = [traffic[order[:8]].sum(), traffic[order[8:]].sum()]
    assert max(halves) < 1.16 * np.mean(halves)


def test_counts_that_are_no_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="symmetric"):
        order_experts(np.array([[1, 2], [3, 1]]))


@pytest.fixture(scope="module", params=["qwen3moe", "glm4moe", "qwen35moe"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "m.gguf", TinyModel(request.param, "Q8_0"))


def logits(path: Path) -> torch.Tensor:
    with LoadedModel.open(path, n_slot=1, n_ctx=64) as loaded:
        batch = Batch.of([SlotTokens(loaded.model.cache.allocate(), TOKENS)], loaded.model.cache)
        return asyncio.run(loaded.model.forward(batch, ExpertDispatcher(loaded.store, NoWorkers())))


def layers_of(path: Path) -> tuple[int, ...]:
    with LoadedModel.open(path, n_slot=1, n_ctx=64) as loaded:
        assert loaded.card.n_expert == N_EXPERT
        return tuple(loaded.card.moe_layers)


def test_a_renumbered_model_gives_the_same_logits(model: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    orders = {layer: rng.permutation(N_EXPERT).tolist() for layer in layers_of(model)}
    renumber_experts(model, tmp_path / "new.gguf", orders)
    assert (tmp_path / "new.gguf").read_bytes() != model.read_bytes()
    assert torch.allclose(logits(tmp_path / "new.gguf"), logits(model), atol=1e-4)
    back = {layer: np.argsort(order).tolist() for layer, order in orders.items()}
    renumber_experts(tmp_path / "new.gguf", tmp_path / "old.gguf", back)
    assert (tmp_path / "old.gguf").read_bytes() == model.read_bytes()


def test_orders_that_are_none_are_refused(model: Path, tmp_path: Path) -> None:
    layer = layers_of(model)[-1]
    for order in ([0] * N_EXPERT, [*range(N_EXPERT - 1)], [*range(1, N_EXPERT + 1)]):
        with pytest.raises(ConfigError, match=rf"blk\.{layer}\..* has 16 experts"):
            renumber_experts(model, tmp_path / "new.gguf", {layer: order})
    with pytest.raises(ConfigError, match=r"layers \[99\] .* have no experts"):
        renumber_experts(model, tmp_path / "new.gguf", {99: [*range(N_EXPERT)]})
    with pytest.raises(GGUFError):
        renumber_experts(Path(__file__), tmp_path / "new.gguf", {})
    assert list(tmp_path.iterdir()) == []


def test_the_command_reads_a_text_and_writes_a_model(model: Path, tmp_path: Path) -> None:
    text, output, out = tmp_path / "text.txt", tmp_path / "new.gguf", StringIO()
    text.write_text("hello hello, is it far? " * 30)
    call_command("renumber_experts", model, output, text=text, max_tokens=300, stdout=out)
    assert f"experts of {len(layers_of(model))} layers" in out.getvalue()
    assert torch.allclose(logits(output), logits(model), atol=1e-4)
    with GGUFIndex.open(output) as new, GGUFIndex.open(model) as old:
        assert list(new.tensors) == list(old.tensors)
    with pytest.raises(CommandError, match="exists already"):
        call_command("renumber_experts", model, output, text=text)
    with pytest.raises(CommandError, match=r"missing\.txt"):
        call_command("renumber_experts", model, tmp_path / "other.gguf", text=tmp_path / "missing.txt")
