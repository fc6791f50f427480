"""Routed experts in plain torch, dequantised, in any dtype: the in-process oracle for `Model.forward`.

It reads the expert tensors by itself, apart from the slices and kernels that it is compared with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from backbone.engine.ops.interface import Routing
from kvasir.gguf.index import GGUFIndex


class InProcessExperts:
    """Implements `ExpertCaller`. It yields to the event loop once a call, as a network would."""

    def __init__(self, index: GGUFIndex, layers: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
        self._dtype = dtype
        self._experts = {layer: self._load(index, layer) for layer in layers}

    def submit(self, layer: int, rows: Tensor, routing: Routing) -> Awaitable[Tensor]:
        """Rows [T, d_model] -> partials [T, n_used, d_model]."""
        return self._compute(layer, rows, routing.expert_ids)

    async def _compute(self, layer: int, rows: Tensor, expert_ids: Tensor) -> Tensor:
        await asyncio.sleep(0)
        gate, up, down = self._experts[layer]
        partials = rows.new_empty(*expert_ids.shape, rows.shape[1])
        for expert in sorted(set(expert_ids.flatten().tolist())):
            where = expert_ids == expert
            x = rows[where.nonzero()[:, 0]]
            partials[where] = F.linear(F.silu(F.linear(x, gate[expert])) * F.linear(x, up[expert]), down[expert])
        return partials

    def _load(self, index: GGUFIndex, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        prefix = f"blk.{layer}.ffn_"
        if f"{prefix}gate_up_exps.weight" in index.tensors:
            gate, up = self._tensor(index, f"{prefix}gate_up_exps.weight").chunk(2, dim=1)
        else:
            gate, up = (self._tensor(index, f"{prefix}{name}_exps.weight") for name in ("gate", "up"))
        return gate, up, self._tensor(index, f"{prefix}down_exps.weight")

    def _tensor(self, index: GGUFIndex, name: str) -> Tensor:
        info = index.tensors[name]
        blocks = index.bytes_of(name).reshape(info.shape[0] * info.shape[1], -1)
        values = np.array(gguf.dequantize(blocks, info.quant_type), np.float32)
        return torch.from_numpy(values.reshape(info.shape)).to(self._dtype)
