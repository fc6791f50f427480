"""Measures how large a model's expert outputs are, layer by layer, on a fixed text: the scale of its sums.

The backbone process asks for it at its start if replies are sums. The scale is kept in a file, so that it is the same
after a restart, and on another machine to which the file is copied.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable
from pathlib import Path

import numpy as np
import torch

from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.model.batch import Batch, SlotTokens
from backbone.engine.ops.interface import Routing
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.sum_scale import SumScale
from backbone.engine.swarm.transport import NoWorkers
from kvasir.errors import ConfigError

logger = logging.getLogger(__name__)

TEXT = (
    "Once upon a time there was a little boat that wanted to see the sea. Every morning it asked the wind: is it far? "
    "The answer, in 1984 as in 2024, was the same: 12 miles, and a half. Pada suatu hari perahu kecil itu berlayar ke "
    "laut. def sail(miles: float) -> bool:\n    return miles <= 12.5  # f(x) = x² + 3\n"
)
N_TOKENS = 64


class _Listener:
    """Passes calls on to a dispatcher, and keeps the mean square of each layer's outputs."""

    def __init__(self, dispatcher: ExpertDispatcher) -> None:
        self._dispatcher = dispatcher
        self.mean_squares: dict[int, float] = {}

    async def _listen(self, layer: int, under_way: Awaitable[torch.Tensor]) -> torch.Tensor:
        outputs = await under_way
        self.mean_squares[layer] = float(np.square(outputs.numpy().astype(np.float64)).mean())
        return outputs

    def submit(self, layer: int, rows: torch.Tensor, routing: Routing) -> Awaitable[torch.Tensor]:
        """See ExpertCaller."""
        return self._listen(layer, self._dispatcher.submit(layer, rows, routing))


def calibrate(loaded: LoadedModel) -> SumScale:
    """Run the fixed text through a model with a free slot, and compute all experts here.

    Raises ConfigError if a layer's outputs are all zero or not finite: such a model has no scale.
    """
    tokens = loaded.tokenizer.encode(TEXT, add_special=False, parse_special=False)[:N_TOKENS]
    cache = loaded.model.cache
    slot = cache.allocate()
    try:
        batch = Batch.of([SlotTokens(slot, tokens[: cache.n_ctx])], cache)
        listener = _Listener(ExpertDispatcher(loaded.store, NoWorkers()))
        asyncio.run(loaded.model.forward(batch, listener))
    finally:
        cache.free(slot)
    rms = {layer: value**0.5 for layer, value in sorted(listener.mean_squares.items())}
    wrong = [layer for layer, value in rms.items() if not 0 < value < float("inf")]
    if wrong:
        raise ConfigError(f"all outputs of experts of layers {wrong} are 0 or not finite: their sums have no scale")
    return SumScale(loaded.card.fingerprint, rms)


def sum_scale_of(loaded: LoadedModel, folder: Path) -> SumScale:
    """Return the scale kept in `folder`, or measure one and keep it there. Raises ConfigError for a broken file.

    A dense path whose bits may depend on the batch has a file of its own, apart from the exact one's.
    """
    ops = loaded.model.ops
    suffix = "" if ops.is_batch_stable else "-" + re.sub(r"\W+", "-", ops.name)
    path = folder / f"{loaded.card.fingerprint}{suffix}.json"
    if path.exists():
        try:
            return SumScale.from_json(path.read_text(encoding="utf-8"))
        except (ConfigError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {error}; delete it to have it measured again") from error
    scale = calibrate(loaded)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.part")
    unfinished.write_text(scale.as_json(), encoding="utf-8")
    unfinished.replace(path)
    logger.info("measured the scale of sums, kept in %s", path)
    return scale
