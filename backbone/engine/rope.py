"""Tables of the cosines and sines by which queries and keys are turned. Made once, indexed by every forward."""

from __future__ import annotations

import torch
from torch import Tensor

from backbone.engine.devices import CPU
from backbone.engine.model_config import RopeConfig


class RopeTable:
    """Cosines and sines of every position up to `n_ctx`."""

    def __init__(self, config: RopeConfig, n_ctx: int, dtype: torch.dtype, device: torch.device = CPU) -> None:
        exponents = torch.arange(0, config.n_dims, 2, dtype=torch.float64) / config.n_dims
        angles = torch.outer(torch.arange(n_ctx, dtype=torch.float64), config.base**-exponents)
        self.cos = angles.cos().to(dtype).to(device)  # [n_ctx, n_dims / 2]
        self.sin = angles.sin().to(dtype).to(device)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, n_dims / 2] at positions int64 [T]."""
        return self.cos[positions], self.sin[positions]
