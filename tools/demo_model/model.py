"""The demo model in plain torch: Qwen3-MoE's mathematics in a size that two CPU cores can train.

Used by `train` and `evaluate`. Weights go by their GGUF names, so that converting is only a change of number format.
It shares no code with the backbone's engine and can therefore check it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """Sizes of the model; the defaults are the published one's (20.6 million parameters)."""

    n_vocab: int = 2048
    d_model: int = 256
    n_layer: int = 6
    n_head: int = 4
    n_kv_head: int = 2
    d_head: int = 64
    n_expert: int = 16
    n_used: int = 2
    d_ff: int = 256
    n_ctx: int = 1024
    rope_base: float = 10000.0
    norm_eps: float = 1e-6


class Output(NamedTuple):
    """Logits [B, S, n_vocab]; the balance term (1 when all experts are used alike); each expert's load [n_layer, E]."""

    logits: Tensor
    balance: Tensor
    load: Tensor


class Norm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


class Expert(nn.Module):
    """A SwiGLU feed-forward network; one module an expert, so that only the used ones get a gradient."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.gate = _linear(config.d_model, config.d_ff)
        self.up = _linear(config.d_model, config.d_ff)
        self.down = _linear(config.d_ff, config.d_model, n_layer=config.n_layer)

    def forward(self, rows: Tensor) -> Tensor:
        partial: Tensor = self.down(functional.silu(self.gate(rows)) * self.up(rows))
        return partial


class MoE(nn.Module):
    """Each row goes to the `n_used` likeliest experts, weighted by their probabilities scaled to sum to 1."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        self.router = _linear(config.d_model, config.n_expert)
        self.experts = nn.ModuleList(Expert(config) for _ in range(config.n_expert))

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probability = self.router(rows).float().softmax(-1)  # [T, E]
        weights, expert_ids = probability.topk(self.config.n_used, -1)  # [T, k]
        weights = weights / weights.sum(-1, keepdim=True)
        combined = torch.zeros_like(rows, dtype=torch.float32)
        for expert_id, expert in enumerate(self.experts):
            row_ids, places = (expert_ids == expert_id).nonzero(as_tuple=True)
            if row_ids.numel():
                partial = expert(rows[row_ids]).float() * weights[row_ids, places, None]
                combined = combined.index_add(0, row_ids, partial)
        load = torch.bincount(expert_ids.flatten(), minlength=self.config.n_expert) / expert_ids.numel()
        balance = self.config.n_expert * (load * probability.mean(0)).sum()
        return combined, balance, load


class Attention(nn.Module):
    """Grouped-query attention with normed queries and keys and rotary positions (halves, as NEOX has them)."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        self.q = _linear(config.d_model, config.n_head * config.d_head)
        self.k = _linear(config.d_model, config.n_kv_head * config.d_head)
        self.v = _linear(config.d_model, config.n_kv_head * config.d_head)
        self.output = _linear(config.n_head * config.d_head, config.d_model, n_layer=config.n_layer)
        self.q_norm = Norm(config.d_head, config.norm_eps)
        self.k_norm = Norm(config.d_head, config.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n_batch, n_row, _ = x.shape
        heads = (n_batch, n_row, -1, self.config.d_head)
        q = _rotate(self.q_norm(self.q(x).view(heads)).transpose(1, 2), cos, sin)  # [B, H, S, d_head]
        k = _rotate(self.k_norm(self.k(x).view(heads)).transpose(1, 2), cos, sin)
        v = self.v(x).view(heads).transpose(1, 2).to(q.dtype)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        projected: Tensor = self.output(mixed.transpose(1, 2).reshape(n_batch, n_row, -1))
        return projected


class Layer(nn.Module):
    """Attention, then experts, each on a normed copy and added to the residual stream."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.attention_norm = Norm(config.d_model, config.norm_eps)
        self.attention = Attention(config)
        self.moe_norm = Norm(config.d_model, config.norm_eps)
        self.moe = MoE(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        combined, balance, load = self.moe(self.moe_norm(x).flatten(0, 1))
        return x + combined.view_as(x), balance, load


class StoryModel(nn.Module):
    """The whole model; the output matrix is the embedding."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.randn(config.n_vocab, config.d_model) * 0.02)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
        self.output_norm = Norm(config.d_model, config.norm_eps)

    def forward(self, token_ids: Tensor) -> Output:
        """token_ids int64 [B, S]."""
        x = functional.embedding(token_ids, self.embedding)  # [B, S, d_model]
        cos, sin = _rotations(self.config, token_ids.shape[1])
        balances, loads = [], []
        for layer in self.layers:
            x, balance, load = layer(x, cos, sin)
            balances.append(balance)
            loads.append(load)
        logits = functional.linear(self.output_norm(x), self.embedding)
        return Output(logits, torch.stack(balances).mean(), torch.stack(loads))

    def tensors(self) -> dict[str, Tensor]:
        """The parameters by their GGUF names; an expert matrix's value is a list along the first dimension."""
        return {name: torch.stack([p.detach() for p in ps]) if many else ps[0].detach()
                for name, (ps, many) in self._parameters_by_name().items()}  # fmt: skip

    @torch.no_grad()
    def load_tensors(self, values: Mapping[str, NDArray[np.float32]]) -> None:
        """Take over weights by their GGUF names. Raises ValueError when one is missing or left over."""
        wanted = self._parameters_by_name()
        if wanted.keys() != values.keys():
            raise ValueError(f"these tensors do not match: {sorted(wanted.keys() ^ values.keys())}")
        for name, (parameters, many) in wanted.items():
            value = torch.from_numpy(np.array(values[name], np.float32))
            for parameter, part in zip(parameters, value if many else [value], strict=True):
                parameter.copy_(part)

    def _parameters_by_name(self) -> dict[str, tuple[list[Tensor], bool]]:
        named: dict[str, tuple[list[Tensor], bool]] = {
            "token_embd.weight": ([self.embedding], False),
            "output_norm.weight": ([self.output_norm.weight], False),
        }
        for number, module in enumerate(self.layers):
            layer = cast(Layer, module)
            attention, moe = layer.attention, layer.moe
            for name, part in (
                ("attn_norm", layer.attention_norm), ("ffn_norm", layer.moe_norm), ("attn_q_norm", attention.q_norm),
                ("attn_k_norm", attention.k_norm), ("ffn_gate_inp", moe.router), ("attn_q", attention.q),
                ("attn_k", attention.k), ("attn_v", attention.v), ("attn_output", attention.output),
            ):  # fmt: skip
                named[f"blk.{number}.{name}.weight"] = ([part.weight], False)
            for matrix in ("gate", "up", "down"):
                weights = [getattr(expert, matrix).weight for expert in moe.experts]
                named[f"blk.{number}.ffn_{matrix}_exps.weight"] = (weights, True)
        return named


def save_checkpoint(model: StoryModel, path: Path) -> None:
    """Write configuration and weights, by GGUF names, as an .npz file."""
    values = {name: tensor.float().numpy() for name, tensor in model.tensors().items()}
    config = {f"config.{name}": np.array(value) for name, value in asdict(model.config).items()}
    arrays: dict[str, Any] = values | config  # savez is declared with a boolean among its keywords
    with path.open("wb") as stream:
        np.savez(stream, **arrays)


def load_checkpoint(path: Path) -> StoryModel:
    """Read what `save_checkpoint` wrote; nothing in it is executed."""
    with np.load(path, allow_pickle=False) as stored:
        config = DemoConfig(**{field.name: stored[f"config.{field.name}"].item() for field in fields(DemoConfig)})
        model = StoryModel(config)
        model.load_tensors({name: stored[name] for name in stored.files if not name.startswith("config.")})
    return model


def _linear(n_in: int, n_out: int, *, n_layer: int | None = None) -> nn.Linear:
    """Small random weights; smaller where the result is added to the residual stream of `n_layer` layers."""
    linear = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(linear.weight, std=0.02 if n_layer is None else 0.02 / (2 * n_layer) ** 0.5)
    return linear


def _rotations(config: DemoConfig, n_row: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine [S, d_head] of every position's angles."""
    frequencies = config.rope_base ** -(torch.arange(0, config.d_head, 2) / config.d_head)
    angles = torch.outer(torch.arange(n_row).float(), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin
