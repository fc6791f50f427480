"""`manage.py renumber_experts MODEL OUTPUT --text FILE`: renumber experts so that those used together are neighbours.

Runs the model over the text, counts the experts that each row uses together, orders every layer
(`backbone.engine.dispatch.co_activation`) and writes a new model file, for workers and backbones to use instead.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from django.core.management.base import BaseCommand, CommandError

from backbone.engine.dispatch.call_samples import CallSamples
from backbone.engine.dispatch.co_activation import order_experts
from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.model.batch import Batch, SlotTokens
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from kvasir.errors import KvasirError
from kvasir.slicing.expert_renumbering import renumber_experts

WINDOW = 256


class Sampling:
    """An ExpertCaller without workers that counts the experts of each row."""

    def __init__(self, loaded: LoadedModel) -> None:
        card = loaded.card
        self.samples = CallSamples(card.n_layer, card.n_expert, n_kept=1, every=1, most_rows=WINDOW)
        self._dispatcher = ExpertDispatcher(loaded.store, NoWorkers())

    def submit(self, layer: int, rows: torch.Tensor, expert_ids: torch.Tensor) -> Awaitable[torch.Tensor]:
        """See ExpertCaller."""
        self.samples.add(layer, expert_ids.numpy().astype(np.int32))
        return self._dispatcher.submit(layer, rows, expert_ids)


class Command(BaseCommand):
    """The command."""

    help = "Write a model file in which experts that rows use together are neighbours."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the files, and the number of tokens to read."""
        parser.add_argument("model", type=Path)
        parser.add_argument("output", type=Path)
        parser.add_argument("--text", type=Path, required=True, help="text like that which the model will serve")
        parser.add_argument("--max-tokens", type=int, default=16_384, help="tokens of it to read (default: 16384)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Count, order and write."""
        if options["output"].exists():
            raise CommandError(f"{options['output']} exists already")
        try:
            orders = _orders(options["model"], options["text"], options["max_tokens"])
            renumber_experts(options["model"], options["output"], orders)
        except (KvasirError, OSError, UnicodeDecodeError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{options['output']}: experts of {len(orders)} layers are in a new order")


def _orders(model: Path, text: Path, max_tokens: int) -> dict[int, list[int]]:
    """Return the new order of each layer with experts."""
    with LoadedModel.open(model, n_slot=1, n_ctx=WINDOW) as loaded:
        words = text.read_text(encoding="utf-8")
        tokens = loaded.tokenizer.encode(words, add_special=False, parse_special=False)[:max_tokens]
        experts, cache = Sampling(loaded), loaded.model.cache
        for start in range(0, len(tokens), WINDOW):
            slot = cache.allocate()
            batch = Batch.of([SlotTokens(slot, tokens[start : start + WINDOW])], cache)
            asyncio.run(loaded.model.forward(batch, experts))
            cache.free(slot)
        return {layer: order_experts(experts.samples.together(layer)).tolist() for layer in loaded.card.moe_layers}
