"""Routed experts by one of Kvasir's own kernels, in process: all experts of a file, without slices or a dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import numpy as np
import torch
from torch import Tensor

from backbone.engine.ops.interface import Routing
from kvasir.gguf.index import GGUFIndex
from kvasir.kernels.api import ExpertKernel
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slices import model_experts


class KernelExperts:
    """Implements `ExpertCaller`. It yields to the event loop once a call, as a network would."""

    def __init__(self, index: GGUFIndex, layers: Sequence[int], kernel: ExpertKernel) -> None:
        card = ModelCard.from_index(index)
        self._kernel = kernel
        self._layers = {layer: kernel.load(model_experts(index, card, layer)) for layer in layers}

    def submit(self, layer: int, rows: Tensor, routing: Routing) -> Awaitable[Tensor]:
        """Rows [T, d_model] f32 -> partials [T, n_used, d_model]."""
        return self._compute(layer, rows, routing.expert_ids)

    async def _compute(self, layer: int, rows: Tensor, expert_ids: Tensor) -> Tensor:
        await asyncio.sleep(0)
        n_rows, n_used = expert_ids.shape
        encoded = self._kernel.encode_rows(np.ascontiguousarray(rows.numpy(), np.float32))
        pair_rows = np.repeat(np.arange(n_rows, dtype=np.int32), n_used)
        pair_ids = np.ascontiguousarray(expert_ids.flatten().numpy(), np.int32)
        return torch.from_numpy(self._layers[layer].compute(encoded, pair_rows, pair_ids)).view(n_rows, n_used, -1)
