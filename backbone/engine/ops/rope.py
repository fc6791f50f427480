"""How queries and keys are turned by their positions: tables of cosines and sines, made once, and the turning."""

from __future__ import annotations

import torch
from torch import Tensor

from backbone.engine.ops.devices import CPU
from backbone.engine.ops.model_config import RopeConfig


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


def turned(x: Tensor, cos: Tensor, sin: Tensor, *, has_adjacent_pairs: bool) -> Tensor:
    """Heads x [T, h, d] with their first 2 * d_rot values turned by cos and sin [T, d_rot]."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # [T, 1, d_rot]
    n_rotated = 2 * cos.shape[-1]
    rotated, rest = x[..., :n_rotated], x[..., n_rotated:]
    if has_adjacent_pairs:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
        pairs = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    else:
        a, b = rotated.chunk(2, -1)
        pairs = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return torch.cat([pairs, rest], -1)
