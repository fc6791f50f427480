"""The arithmetic of the dense path as an interface, so that the model is written once.

`torch_ops` is the oracle: plain torch in float32 or float64. `stable_ops` runs in production: quantised matrices in
place, and every result row computed in a fixed order from its own inputs alone, so that a row's bits do not depend on
its batch, on the chunking of a prompt or on the thread count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from backbone.engine.ops.devices import CPU
from backbone.engine.ops.model_config import RopeConfig, RouterConfig
from kvasir.experts import WeightMatrix


class RopeTable:
    """Cosines and sines of every position up to `n_ctx`."""

    def __init__(self, config: RopeConfig, n_ctx: int, dtype: torch.dtype, device: torch.device = CPU) -> None:
        exponents = torch.arange(0, config.n_dims, 2, dtype=torch.float64) / config.n_dims
        angles = torch.outer(torch.arange(n_ctx, dtype=torch.float64), config.base**-exponents)
        self.cos = angles.cos().to(dtype).to(device)  # [n_ctx, n_dims / 2]
        self.sin = angles.sin().to(dtype).to(device)

    def turned(self, heads: Tensor, positions: Tensor, *, has_adjacent_pairs: bool) -> Tensor:
        """Return heads [T, h, d] with their first `n_dims` values turned by their positions, int64 [T]."""
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)  # [T, 1, n_dims / 2]
        n_rotated = 2 * cos.shape[-1]
        rotated, rest = heads[..., :n_rotated], heads[..., n_rotated:]
        if has_adjacent_pairs:
            a, b = rotated[..., 0::2], rotated[..., 1::2]
            pairs = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        else:
            a, b = rotated.chunk(2, -1)
            pairs = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return torch.cat([pairs, rest], -1)


class Segment(NamedTuple):
    """Consecutive rows of one sequence: `n_rows` from row `first_row` of the batch, at positions from `position`."""

    slot: int
    first_row: int
    n_rows: int
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class KVLayer:
    """Keys and values of one attention layer by slot. `kv_cache` owns them."""

    keys: Tensor  # [n_slot, n_kv_head, n_ctx, d_head]
    values: Tensor  # [n_slot, n_kv_head, n_ctx, d_head_v]


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A linear layer: its weight in the form that its Ops gave it, and its optional bias [n_out]."""

    n_in: int
    n_out: int
    weight: Any  # private to the Ops that made it
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class HeadForm:
    """The form of projected queries and keys as heads. The size of a norm shows if it is over one head or all."""

    query_norm: Tensor | None  # [d_head], or [n_head * d_head]
    key_norm: Tensor | None  # [d_head], or [n_kv_head * d_head]
    norm_eps: float
    has_adjacent_pairs: bool  # see Ops.attend
    scale: float  # factor of q·k


class Routing(NamedTuple):
    """The experts of each row in selection order, best first, and the weights of their partials."""

    expert_ids: Tensor  # int64 [T, n_used]
    weights: Tensor  # [T, n_used]


class Ops(Protocol):
    """Operations on T rows, each row by itself. Inputs are contiguous, results are new tensors."""

    @property
    def name(self) -> str:
        """Name the arithmetic with all that may change a bit of a result; it is part of a model's fingerprint."""
        ...

    @property
    def is_batch_stable(self) -> bool:
        """Return whether a row's bits never depend on the rows beside it."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of activations and caches."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of activations, caches and weights."""
        ...

    def make_linear(self, matrix: WeightMatrix, bias: Tensor | None = None) -> Linear:
        """Prepare a matrix of any ggml type that gguf can dequantise."""
        ...

    def linear(self, x: Tensor, *linears: Linear) -> tuple[Tensor, ...]:
        """Multiply x [T, n_in]: one [T, n_out] a linear. x is quantised once for all of them."""
        ...

    def embed(self, matrix: WeightMatrix, token_ids: Tensor) -> Tensor:
        """Return dequantised rows of the embedding matrix: int64 [T] -> [T, n_in]."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return x * rsqrt(mean(x²) + eps) * weight, over the last dimension."""
        ...

    def l2_norm(self, x: Tensor, eps: float) -> Tensor:
        """Return x * rsqrt(sum(x²) + eps), over the last dimension."""
        ...

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        form: HeadForm,
        rope: RopeTable,
        cache: KVLayer,
        segments: Sequence[Segment],
    ) -> Tensor:
        """Attend causally with projected rows, each over its own slot, keys 0 to its own position.

        query [T, n_head * d_head] and key [T, n_kv_head * d_head] are normalised, and the first 2 * d_rot values of
        each head rotated: pairs are (i, i + d_rot), or (2i, 2i + 1) with adjacent pairs. Keys and value
        [T, n_kv_head * d_head_v] go into the cache. Returns [T, n_head, d_head_v].
        """
        ...

    def route(self, logits: Tensor, config: RouterConfig, selection_bias: Tensor | None) -> Routing:
        """Choose experts for router logits [T, n_expert]; `selection_bias` [n_expert] affects the choice only.

        Ties go to the lower expert id.
        """
        ...

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor: ...
    def silu(self, x: Tensor) -> Tensor: ...
    def sigmoid(self, x: Tensor) -> Tensor: ...
    def softplus(self, x: Tensor) -> Tensor: ...

    def causal_conv(self, x: Tensor, weight: Tensor, state: Tensor, segments: Sequence[Segment]) -> Tensor:
        """Convolve causally, depthwise: x [T, c], weight [c, width], state [n_slot, width - 1, c] updated in place."""
        ...

    def delta_rule(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor,
        beta: Tensor,
        state: Tensor,
        segments: Sequence[Segment],
    ) -> Tensor:
        """Apply the gated delta rule token by token; the state is updated in place.

        q, k [T, n_k_head, d_k] (q already scaled), v [T, n_v_head, d_v], log_decay and beta [T, n_v_head],
        state [n_slot, n_v_head, d_v, d_k]; value head h reads key head h % n_k_head. Per token: S = exp(log_decay) * S;
        d = (v - S k) * beta; S = S + d kᵀ; out = S q. Returns [T, n_v_head, d_v].
        """
        ...

    def combine(self, partials: Tensor, weights: Tensor) -> Tensor:
        """Return Σ_j weights[t, j] * partials[t, j], j ascending: [T, n_used, d] and [T, n_used] -> [T, d]."""
        ...
