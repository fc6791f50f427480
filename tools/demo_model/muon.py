"""Muon: momentum whose steps are made orthogonal, for the matrices of attention and experts.

Used by `train`; embedding, router and norms go by AdamW instead.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

# A quintic iteration whose odd polynomial pulls every singular value to about 1.
_QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrix: Tensor, n_steps: int = 4) -> Tensor:
    """The matrix [m, n] with all singular values brought near 1, by Newton-Schulz steps in bfloat16."""
    a, b, c = _QUINTIC
    x: Tensor = matrix.bfloat16()
    is_tall = x.shape[0] > x.shape[1]
    if is_tall:
        x = x.mT
    x = x / (x.norm() + 1e-7)
    for _ in range(n_steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = (x.mT if is_tall else x).float()
    return result


class Muon:
    """Nesterov momentum of 0.95, orthogonal steps, decoupled weight decay."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, weight_decay: float, momentum: float = 0.95) -> None:
        self._parameters = list(parameters)
        self._momenta = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._weight_decay = weight_decay
        self._momentum = momentum

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Move each parameter that has a gradient, and forget the gradients."""
        for parameter, momentum in zip(self._parameters, self._momenta, strict=True):
            if parameter.grad is None:
                continue
            momentum.lerp_(parameter.grad, 1 - self._momentum)
            direction = orthogonalise(parameter.grad.lerp(momentum, self._momentum))
            scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
            parameter.mul_(1 - learning_rate * self._weight_decay).sub_(direction, alpha=learning_rate * scale)
            parameter.grad = None
