"""Running a `Model` by hand, without the engine: a sequence in chunks, several at once, greedily.

Tests and benchmarks of the dense path use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from backbone.engine.model.expert_caller import ExpertCaller
from backbone.engine.model.model import Batch, Model
from backbone.engine.ops.interface import Ops
from kvasir.gguf.index import GGUFIndex
from tests.oracles.torch_experts import InProcessExperts

torch.set_num_threads(1)  # tiny matrices: splitting one costs many times its product


@contextmanager
def torch_oracle(path: Path, ops: Ops, *, n_slot: int = 4, n_ctx: int = 64) -> Iterator[tuple[Model, InProcessExperts]]:
    """A model of a file over some Ops, with torch experts in their dtype."""
    with GGUFIndex.open(path) as index:
        model = Model.load(index, ops, n_slot=n_slot, n_ctx=n_ctx)
        yield model, InProcessExperts(index, model.config.moe_layers, ops.dtype)


def forward(model: Model, experts: ExpertCaller, parts: Sequence[tuple[int, Sequence[int]]]) -> list[Tensor]:
    """Logits of every row of one batch, split by segment."""
    batch = Batch.of(parts, model.cache)
    logits = asyncio.run(model.forward(batch, experts, range(batch.n_rows)))
    return list(torch.split(logits, [segment.n_rows for segment in batch.segments]))


def run_chunks(model: Model, experts: ExpertCaller, token_ids: Sequence[int], chunks: Sequence[int]) -> Tensor:
    """Logits [n, n_vocab] of a sequence that is computed in chunks of these lengths, in a slot of its own."""
    slot = model.cache.allocate()
    logits, start = [], 0
    for n in chunks:
        logits += forward(model, experts, [(slot, token_ids[start : start + n])])
        start += n
    model.cache.free(slot)
    return torch.cat(logits)


def greedy(model: Model, experts: ExpertCaller, prompt: Sequence[int], n_tokens: int) -> list[int]:
    """The likeliest continuation: prompt in one chunk, then token by token."""
    slot = model.cache.allocate()
    chosen: list[int] = []
    tokens: Sequence[int] = prompt
    for _ in range(n_tokens):
        logits = forward(model, experts, [(slot, tokens)])[0]
        tokens = [int(logits[-1].argmax())]
        chosen += tokens
    model.cache.free(slot)
    return chosen
