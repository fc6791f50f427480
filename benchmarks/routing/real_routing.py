"""The experts that a model's router really chose for a text, token by token, and random routing with the same habits.

`bench_hot_cache` and `bench_wire` read it. Nothing is timed here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from backbone.engine.dispatch.co_activation import order_experts
from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.ops.interface import Routing
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from benchmarks.exact.demo import cut_windows, tokenise_stories
from tests.oracles.model_runs import forward

Routed = npt.NDArray[np.int32]  # [n_tokens, n_used]

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "kvasir-demo-moe.q4_k_m.gguf"
STORIES = ROOT / "tests" / "data" / "stories.txt"


class _Listener:
    """Passes calls on, and keeps which experts they were for."""

    def __init__(self, dispatcher: ExpertDispatcher) -> None:
        self._dispatcher = dispatcher
        self.routed: dict[int, list[Routed]] = {}

    def submit(self, layer: int, rows: torch.Tensor, routing: Routing) -> Awaitable[torch.Tensor]:
        """See ExpertCaller."""
        self.routed.setdefault(layer, []).append(routing.expert_ids.numpy().astype(np.int32))
        return self._dispatcher.submit(layer, rows, routing)


def demo_routing(max_windows: int | None = None) -> dict[int, Routed]:
    """The demo model's choices for the stories, by layer; windows of 256 tokens, each a fresh sequence."""
    with LoadedModel.open(DEMO, n_slot=1, n_ctx=256) as loaded:
        windows = cut_windows(tokenise_stories(loaded, STORIES.read_text(encoding="utf-8")))[:max_windows]
        listener = _Listener(ExpertDispatcher(loaded.store, NoWorkers()))
        for window in windows:
            slot = loaded.model.cache.allocate()
            forward(loaded.model, listener, [(slot, window)])
            loaded.model.cache.free(slot)
    return {layer: np.concatenate(parts) for layer, parts in sorted(listener.routed.items())}


def calls_together(routed: Routed, n_expert: int) -> npt.NDArray[np.int64]:
    """Return how many rows called each two experts: int64 [n_expert, n_expert]; the diagonal has rows that called
    one."""
    pairs = (routed[:, :, None].astype(np.int64) * n_expert + routed[:, None, :]).reshape(-1)
    return np.bincount(pairs, minlength=n_expert * n_expert).reshape(n_expert, n_expert)


def workers_per_row(routing: Mapping[int, Routed], n_expert: int, n_workers: int) -> dict[str, float]:
    """To how many workers a row goes that share a layer in equal ranges, by the order of experts: mean over all layers.

    "colocated" is the order learned from the first half of the rows; both are counted on the other half.
    """
    plain, colocated = [], []
    for routed in routing.values():
        learned, counted = np.split(routed, [len(routed) // 2])
        place = np.argsort(order_experts(calls_together(learned, n_expert)))
        plain.append(_mean_ranges(counted, n_expert // n_workers))
        colocated.append(_mean_ranges(place[counted], n_expert // n_workers))
    return {"plain": round(float(np.mean(plain)), 3), "colocated": round(float(np.mean(colocated)), 3)}


def _mean_ranges(places: npt.NDArray[np.integer], size: int) -> float:
    """In how many ranges of `size` places the experts of a row lie, on the average."""
    ranges = np.sort(places // size, axis=1)
    return 1.0 + float((np.diff(ranges, axis=1) > 0).sum(axis=1).mean())
