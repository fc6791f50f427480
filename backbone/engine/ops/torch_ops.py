"""The dense path in plain torch with dequantised weights: the oracle, the fallback, and, experimentally, CUDA.

The loader and the layers use it through `interface.Ops`. Each sequence is computed alone and never padded, but the last
bits of matrix products may depend on the batch and on the device; `stable_ops` has fixed bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import gguf
import numpy as np
import torch
import torch.nn.functional as nnf
from torch import Tensor

from backbone.engine.ops.devices import CPU
from backbone.engine.ops.interface import HeadForm, KVLayer, Linear, RopeTable, Routing, Segment
from backbone.engine.ops.model_config import RouterConfig, ScoreFunction
from kvasir.experts import WeightMatrix

_SOFTPLUS_IS_IDENTITY = 50.0  # above this exp(-x) is lost in the sum, even in float64
_SIGMOID_SUM_EPS = 1e-20  # DeepSeek's and GLM's sigmoid routers add it to a sum of weights that may be tiny
_RANKED_IN_GROUP = 2  # a group's score is the sum of its best two experts


class TorchOps:
    """Implement `Ops` on one device. Matrices are held in `weight_dtype` (default: `dtype`, as all the rest)."""

    is_batch_stable = False

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
        weight_dtype: torch.dtype | None = None,
    ) -> None:
        self._dtype = dtype
        self._device = device
        self._weight_dtype = weight_dtype or dtype

    @property
    def name(self) -> str:
        """Name types and device, on which the bits depend."""
        types = dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in (self._weight_dtype, self._dtype))
        return f"float: {' and '.join(types)} on {self._device.type}"

    @property
    def dtype(self) -> torch.dtype:
        """The type of activations and caches."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self._device

    def make_linear(self, matrix: WeightMatrix, bias: Tensor | None = None) -> Linear:
        """Dequantise a matrix. One that is stored in f32, as routers are, keeps full precision."""
        is_quantised = matrix.quant_type is not gguf.GGMLQuantizationType.F32
        values = self._dequantised(matrix, slice(None)).to(self._weight_dtype if is_quantised else self._dtype)
        return Linear(matrix.n_in, matrix.n_out, values.to(self._device), bias)

    def linear(self, x: Tensor, *linears: Linear) -> tuple[Tensor, ...]:
        """Multiply x [T, n_in]: one [T, n_out] a linear."""
        return tuple(self._linear(x, linear) for linear in linears)

    def _linear(self, x: Tensor, linear: Linear) -> Tensor:
        weight: Tensor = linear.weight
        if weight.dtype is x.dtype:
            return nnf.linear(x, weight, linear.bias)
        result = nnf.linear(x.to(weight.dtype), weight).to(x.dtype)
        return result if linear.bias is None else result + linear.bias

    def embed(self, matrix: WeightMatrix, token_ids: Tensor) -> Tensor:
        """Dequantise the rows of these tokens: int64 [T] -> [T, n_in]."""
        return self._dequantised(matrix, token_ids.numpy()).to(self._device)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Over the last dimension."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    def l2_norm(self, x: Tensor, eps: float) -> Tensor:
        """Over the last dimension."""
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)

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
        """Normalise, rotate and cache projected rows, then attend with them."""
        slots = torch.tensor([s.slot for s in segments for _ in range(s.n_rows)], device=self._device)
        positions = torch.tensor([s.position + row for s in segments for row in range(s.n_rows)], device=self._device)
        query, key = (
            rope.turned(
                self._heads(x, norm, form.norm_eps, cache), positions, has_adjacent_pairs=form.has_adjacent_pairs
            )
            for x, norm in ((query, form.query_norm), (key, form.key_norm))
        )
        cache.keys[slots, :, positions] = key
        cache.values[slots, :, positions] = value.view(len(value), -1, cache.values.shape[-1])
        return self.attention(query, cache, segments, form.scale)

    def _heads(self, x: Tensor, norm: Tensor | None, eps: float, cache: KVLayer) -> Tensor:
        """Return projected rows [T, n * d_head] as normalised heads [T, n, d_head]."""
        heads = x.view(len(x), -1, cache.keys.shape[-1])
        if norm is None:
            return heads
        return self.rms_norm(x.view(len(x), -1, norm.numel()), norm, eps).view(heads.shape)

    def route(self, logits: Tensor, config: RouterConfig, selection_bias: Tensor | None) -> Routing:
        """Choose experts for router logits [T, n_expert]; a stable sort gives ties to the lower expert id."""
        is_sigmoid = config.score_function is ScoreFunction.SIGMOID
        scores = torch.sigmoid(logits) if is_sigmoid else torch.softmax(logits, -1)
        ranked = scores if selection_bias is None else scores + selection_bias
        if config.n_group > 1:
            ranked = _within_best_groups(ranked, config)
        expert_ids = _highest(ranked, config.n_used)
        weights = scores.gather(-1, expert_ids)
        if config.is_normalised:
            total = _ordered_sum(weights)
            weights = weights / (total + _SIGMOID_SUM_EPS if is_sigmoid else total)
        if config.weights_scale != 1.0:
            weights = weights * config.weights_scale
        return Routing(expert_ids, weights)

    def attention(self, q: Tensor, cache: KVLayer, segments: Sequence[Segment], scale: float) -> Tensor:
        """Attend causally with q [T, n_head, d_head], sequence by sequence."""
        out = q.new_empty(*q.shape[:2], cache.values.shape[-1])
        for slot, first, n, position in segments:
            end = position + n
            out[first : first + n] = nnf.scaled_dot_product_attention(
                q[first : first + n].transpose(0, 1)[None],
                cache.keys[slot, :, :end][None],
                cache.values[slot, :, :end][None],
                attn_mask=torch.ones(n, end, dtype=torch.bool, device=q.device).tril(position),
                scale=scale,
                enable_gqa=True,
            )[0].transpose(0, 1)
        return out

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) * up."""
        return nnf.silu(gate) * up

    def silu(self, x: Tensor) -> Tensor:
        """x * sigmoid(x)."""
        return nnf.silu(x)

    def sigmoid(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(-x))."""
        return torch.sigmoid(x)

    def softplus(self, x: Tensor) -> Tensor:
        """log(1 + exp(x))."""
        return nnf.softplus(x, threshold=_SOFTPLUS_IS_IDENTITY)

    def causal_conv(self, x: Tensor, weight: Tensor, state: Tensor, segments: Sequence[Segment]) -> Tensor:
        """Convolve x [T, c] depthwise with weight [c, width]."""
        out = torch.empty_like(x)
        for slot, first, n, _ in segments:
            inputs = torch.cat([state[slot], x[first : first + n]])  # [width - 1 + n, c]
            out[first : first + n] = nnf.conv1d(inputs.T[None], weight[:, None], groups=weight.shape[0])[0].T
            state[slot] = inputs[n:]
        return out

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
        """Apply the gated delta rule token by token."""
        n_repeat = v.shape[1] // k.shape[1]
        q, k = q.repeat(1, n_repeat, 1), k.repeat(1, n_repeat, 1)  # value head h reads key head h % n_k_head
        decay = torch.exp(log_decay)
        out = torch.empty_like(v)
        for slot, first, n, _ in segments:
            s = state[slot]  # [n_v_head, d_v, d_k], a view
            for row in range(first, first + n):
                s.mul_(decay[row][:, None, None])
                delta = (v[row] - torch.einsum("hvk,hk->hv", s, k[row])) * beta[row][:, None]
                s.add_(delta.unsqueeze(-1) * k[row].unsqueeze(-2))
                out[row] = torch.einsum("hvk,hk->hv", s, q[row])
        return out

    def combine(self, partials: Tensor, weights: Tensor) -> Tensor:
        """Σ_j weights[t, j] * partials[t, j], j ascending."""
        total = weights[:, :1] * partials[:, 0]
        for j in range(1, partials.shape[1]):
            total = total + weights[:, j : j + 1] * partials[:, j]
        return total

    def _dequantised(self, matrix: WeightMatrix, rows: slice | np.ndarray) -> Tensor:
        blocks = matrix.data.reshape(matrix.n_out, -1)[rows]
        values = np.asarray(gguf.dequantize(blocks, matrix.quant_type), np.float32).reshape(-1, matrix.n_in)
        return torch.from_numpy(values.copy() if not values.flags.writeable else values).to(self._dtype)


def _highest(scores: Tensor, n: int) -> Tensor:
    """Return the indices of the n highest of each row, best first, ties ascending: [T, m] -> int64 [T, n]."""
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :n].contiguous()


def _ordered_sum(values: Tensor) -> Tensor:
    """Sum the last dimension in ascending order, one add after another: [T, n] -> [T, 1]."""
    total = values[:, :1]
    for column in range(1, values.shape[1]):
        total = total + values[:, column : column + 1]
    return total


def _within_best_groups(ranked: Tensor, config: RouterConfig) -> Tensor:
    """Set the scores of all experts outside a row's best groups to -inf."""
    grouped = ranked.view(ranked.shape[0], config.n_group, -1)  # [T, n_group, experts of a group]
    best = torch.sort(grouped, dim=-1, descending=True, stable=True).values[..., :_RANKED_IN_GROUP]
    chosen = _highest(best[..., 0] + best[..., 1], config.n_group_used)  # [T, n_group_used]
    is_left_out = torch.ones(grouped.shape[:2], dtype=torch.bool, device=grouped.device).scatter_(1, chosen, False)
    return grouped.masked_fill(is_left_out.unsqueeze(-1), float("-inf")).flatten(1)
