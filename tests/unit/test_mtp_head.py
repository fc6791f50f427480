"""The MTP head against llama.cpp, the independent truth: logits of every row, whatever the chunks and the slot before.

Files are tiny and random; a quantised one is compared on its dequantised twin, as in `test_model_archs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from backbone.engine.model.batch import SlotTokens
from backbone.engine.model.kv_cache import Kept
from backbone.engine.model.model import Batch, Model
from backbone.engine.model.mtp_experts import MtpExperts
from backbone.engine.model.mtp_head import MtpHead, SlotToken
from backbone.engine.ops.torch_ops import TorchOps
from backbone.engine.serving.loaded_model import LoadedModel
from kvasir.errors import GGUFError, KernelError, UnsupportedModelError
from kvasir.gguf.index import GGUFIndex
from tests.oracles.llama_cpp import LlamaCpp
from tests.oracles.tiny_gguf import TinyModel, write_tiny, write_tiny_pair
from tests.oracles.tiny_layout import Role, TinyShape, TinyTensor
from tests.oracles.torch_experts import InProcessExperts

TOLERANCE = 2e-5  # logits have a deviation of about 1
SHAPE = TinyShape(n_layer=2, n_expert=8, n_mtp_layer=1)
HEAD = f"blk.{SHAPE.n_layer}.nextn."
TOKENS = np.random.default_rng(7).integers(0, 256, 33).tolist()
N_CHAINED = 3
Change = Callable[[list[TinyTensor]], list[TinyTensor]]


def with_own_ends(tensors: list[TinyTensor]) -> list[TinyTensor]:
    """Embedding and output of the head's own."""
    shape = (SHAPE.n_vocab, SHAPE.d_model)
    own = [
        TinyTensor(f"{HEAD}embed_tokens.weight", shape, Role.OUTPUT, 1.0),
        TinyTensor(f"{HEAD}shared_head_head.weight", shape, Role.OUTPUT, SHAPE.d_model**-0.5),
    ]
    return [*tensors, *own]


def without(name: str) -> Change:
    return lambda tensors: [tensor for tensor in tensors if tensor.name != name]


VARIANTS = {
    "plain": TinyModel("qwen35moe", shape=SHAPE),
    "own ends": TinyModel("qwen35moe", shape=SHAPE, change_tensors=with_own_ends),
    "no norm of its own": TinyModel("qwen35moe", shape=SHAPE, change_tensors=without(f"{HEAD}shared_head_norm.weight")),
    "embedding as head": TinyModel("qwen35moe", shape=SHAPE, is_tied=True),
    "quantised": TinyModel("qwen35moe", "Q4_K", shape=SHAPE),
    "gate and up fused": TinyModel("qwen35moe", "Q8_0", shape=SHAPE, is_gate_up_fused=True),
}


@contextmanager
def opened(path: Path) -> Iterator[tuple[Model, MtpHead, InProcessExperts]]:
    """A model over plain torch, its head in use."""
    with GGUFIndex.open(path) as index:
        experts = InProcessExperts(index, range(SHAPE.n_layer + 1))
        model = Model.load(index, TorchOps(torch.float32), n_slot=3, n_ctx=64, mtp_experts=experts)
        assert model.mtp_head is not None
        yield model, model.mtp_head, experts


def run(model: Model, experts: Any, slot: int, token_ids: Sequence[int], *, is_tentative: bool = False) -> None:
    batch = Batch.of([SlotTokens(slot, token_ids, is_tentative)], model.cache)
    asyncio.run(model.forward(batch, experts))


def guesses(model: Model, slot: int, token: int, n: int) -> NDArray[np.float32]:
    """Logits of `n` guesses after a token that the model has not seen, each from the one before."""
    head, position = model.mtp_head, model.cache.length(slot)
    assert head is not None and head.is_ready(slot, position)
    hidden, found = head.hidden([slot]), []
    for number in range(n):
        hidden, logits = asyncio.run(head.guess([SlotToken(slot, position + number, token)], hidden))
        token = int(logits.argmax())
        found.append(logits[0].numpy())
    return np.stack(found)


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[LlamaCpp]:
    with LlamaCpp() as reference:
        yield reference


def farthest(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    return float(np.abs(found - expected).max())


@pytest.mark.parametrize("name", VARIANTS)
def test_every_guess_is_llama_cpps(name: str, llama_cpp: LlamaCpp, tmp_path: Path) -> None:
    """In chunks of all kinds, with rows that were guessed and not kept, beside and after other sequences."""
    path, twin = write_tiny_pair(tmp_path / "m.gguf", tmp_path / "twin.gguf", VARIANTS[name])
    expected = llama_cpp.mtp_logits(twin, TOKENS, N_CHAINED)
    assert 0.5 < float(expected.std()) < 2.0
    with opened(path) as (model, _, experts):
        used = model.cache.allocate()
        run(model, experts, used, TOKENS[::-1])
        model.cache.free(used)
        slot, other = model.cache.allocate(), model.cache.allocate()
        run(model, experts, other, TOKENS[5:9])
        for n_rows in (1, 1, 5, 1, 2, 9, 1):
            at = model.cache.length(slot)
            run(model, experts, slot, TOKENS[at : at + n_rows])
            assert farthest(guesses(model, slot, TOKENS[at + n_rows], 1), expected[at + n_rows - 1]) < TOLERANCE
        for n_kept in (1, 0, 3, 2, 4):
            at = model.cache.length(slot)
            run(model, experts, slot, [*TOKENS[at : at + n_kept], 250, 251, 252][:5], is_tentative=True)
            model.settle([Kept(slot, n_kept)])
            at += n_kept
            assert farthest(guesses(model, slot, TOKENS[at], 2)[0], expected[at - 1]) < TOLERANCE
        run(model, experts, slot, TOKENS[model.cache.length(slot) : -1])
        assert farthest(guesses(model, slot, TOKENS[-1], N_CHAINED + 1), expected[-N_CHAINED - 1 :]) < TOLERANCE


def test_guesses_of_several_sequences_at_once_are_those_of_each(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", TinyModel("qwen35moe", "Q4_K", shape=SHAPE))
    with LoadedModel.open(path, n_slot=3, n_ctx=64, n_threads=1, has_mtp_head=True) as loaded:
        model, head = loaded.model, loaded.model.mtp_head
        assert head is not None
        experts = InProcessExperts(loaded.index, range(SHAPE.n_layer))
        slots = [model.cache.allocate() for _ in range(3)]
        batch = Batch.of([(slot, TOKENS[slot : 9 - slot]) for slot in slots], model.cache)
        asyncio.run(model.forward(batch, experts))
        alone = [guesses(model, slot, TOKENS[20 + slot], 1)[0] for slot in slots]
        tokens = [SlotToken(slot, 9 - 2 * slot, TOKENS[20 + slot]) for slot in slots]
        together = asyncio.run(head.guess(tokens, head.hidden(slots))).logits.numpy()
        assert np.array_equal(together, np.stack(alone))


@pytest.mark.parametrize("mutant", ["the position", "the row of the hidden state", "keys of rows that were not kept"])
def test_a_head_that_is_shown_the_wrong_thing_is_found_out(mutant: str, llama_cpp: LlamaCpp, tmp_path: Path) -> None:
    """The comparison can fail."""
    path = write_tiny(tmp_path / "m.gguf", VARIANTS["plain"])
    expected = llama_cpp.mtp_logits(path, TOKENS, 0)
    with opened(path) as (model, head, experts):
        slot = model.cache.allocate()
        run(model, experts, slot, TOKENS[:20])
        hidden, position = head.hidden([slot]), 20
        if mutant == "the position":
            position += 1
        elif mutant == "the row of the hidden state":
            run(model, experts, slot, TOKENS[20:21])
            hidden = head.hidden([slot])
        else:
            asyncio.run(head.guess([SlotToken(slot, 12, 7)], hidden))
        logits = asyncio.run(head.guess([SlotToken(slot, position, TOKENS[20])], hidden)).logits
        found = farthest(logits.numpy(), expected[19:20])
        assert np.isnan(found) or found > 100 * TOLERANCE  # a wrong position reads a key that was never written


def test_a_sequence_that_was_not_seen_from_its_beginning_is_not_guessed_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A head that fails on some rows leaves their sequence alone until the slot's next one; the forward goes on."""
    path = write_tiny(tmp_path / "m.gguf", VARIANTS["plain"])

    def fail(*_: object) -> None:
        raise KernelError("a value is not finite")

    with opened(path) as (model, head, experts):
        slot = model.cache.allocate()
        run(model, experts, slot, TOKENS[:4])
        assert head.is_ready(slot, 4) and not head.is_ready(slot, 3)
        with monkeypatch.context() as patched:
            patched.setattr(type(head._layer), "remember", fail)
            run(model, experts, slot, TOKENS[4:6])
        assert "a value is not finite" in caplog.text
        run(model, experts, slot, TOKENS[6:8])
        assert not head.is_ready(slot, 8)
        model.cache.reset(slot)
        assert not head.is_ready(slot, 0)
        run(model, experts, slot, TOKENS[:4])
        assert head.is_ready(slot, 4)
        run(model, experts, slot, TOKENS[4:6], is_tentative=True)
        assert not head.is_ready(slot, 4)
        model.settle([Kept(slot, 1)])
        assert head.is_ready(slot, 5)


def test_a_head_in_use_takes_a_layer_of_each_slot(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", TinyModel("qwen35moe", "Q4_K", shape=SHAPE))
    sizes = []
    for has_mtp_head in (False, True):
        with LoadedModel.open(path, n_slot=2, n_ctx=32, n_threads=1, has_mtp_head=has_mtp_head) as loaded:
            assert (loaded.model.mtp_head is not None) is has_mtp_head
            assert loaded.model.config.n_layer == SHAPE.n_layer
            sizes.append(loaded.model.cache.slot_bytes)
    assert sizes[1] - sizes[0] == 2 * 4 * SHAPE.n_kv_head * SHAPE.d_head * 32


@pytest.mark.parametrize(
    "change", ["nextn.enorm.weight", "nextn.eh_proj.weight", "attn_k.weight", "ffn_gate_inp.weight"]
)
def test_a_tensor_of_a_head_in_use_must_be_there(change: str, tmp_path: Path) -> None:
    """The same file serves with the head left alone."""
    model = TinyModel("qwen35moe", shape=SHAPE, change_tensors=without(f"blk.{SHAPE.n_layer}.{change}"))
    path = write_tiny(tmp_path / "m.gguf", model)
    with pytest.raises(GGUFError, match=f"blk.{SHAPE.n_layer}.{change}"):
        LoadedModel.open(path, n_slot=1, n_threads=1, has_mtp_head=True)
    LoadedModel.open(path, n_slot=1, n_threads=1).close()


def test_a_tensor_of_a_head_in_use_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    extra = TinyTensor(f"{HEAD}new.weight", (32,), Role.PLAIN, 1.0)
    model = TinyModel("qwen35moe", shape=SHAPE, change_tensors=lambda tensors: [*tensors, extra])
    path = write_tiny(tmp_path / "m.gguf", model)
    with pytest.raises(UnsupportedModelError, match=r"nextn\.new\.weight"):
        LoadedModel.open(path, n_slot=1, n_threads=1, has_mtp_head=True)
    LoadedModel.open(path, n_slot=1, n_threads=1).close()


def left_out(tensors: list[TinyTensor]) -> list[TinyTensor]:
    """A file that tells of its head and came without it."""
    return [tensor for tensor in tensors if not tensor.name.startswith(f"blk.{SHAPE.n_layer}.")]


@pytest.mark.parametrize(
    "model",
    [
        TinyModel("glm4moe", shape=SHAPE),
        TinyModel("qwen35moe", shape=replace(SHAPE, n_mtp_layer=2)),
        TinyModel("qwen35moe", shape=replace(SHAPE, n_mtp_layer=0)),
        TinyModel("qwen35moe", shape=SHAPE, change_tensors=left_out),
    ],
    ids=["another architecture", "two layers", "none", "left out of the file"],
)
def test_other_heads_are_left_alone(model: TinyModel, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_tiny(tmp_path / "m.gguf", model)
    with caplog.at_level("DEBUG"), LoadedModel.open(path, n_slot=1, n_threads=1, has_mtp_head=True) as loaded:
        assert loaded.model.mtp_head is None
    assert ("MTP layers: not supported" in caplog.text) is bool(model.shape.n_mtp_layer)


def test_experts_of_another_layer_are_refused(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", TinyModel("qwen35moe", "Q4_K", shape=SHAPE))
    with GGUFIndex.open(path) as index:
        experts = MtpExperts.open(index, 1)
        assert experts is not None
        with pytest.raises(ValueError, match="are of layer 2, layer 1 is wanted"):
            asyncio.run(experts.submit(1, torch.zeros(1, SHAPE.d_model), torch.zeros(1, 2, dtype=torch.int64)))
