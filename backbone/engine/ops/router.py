"""From router logits to the chosen experts and their weights, in torch. `torch_ops` calls it; `stable_ops` has it in C.

Ties go to the lower expert id, so that a choice never depends on how a sort is implemented.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backbone.engine.ops.interface import Routing
from backbone.engine.ops.model_config import RouterConfig, ScoreFunction

# What the sigmoid routers of DeepSeek and GLM add to a sum of weights that may be tiny.
_SIGMOID_SUM_EPS = 1e-20
_RANKED_IN_GROUP = 2  # a group is as good as the sum of its best two experts


def route(logits: Tensor, config: RouterConfig, selection_bias: Tensor | None = None) -> Routing:
    """Choose experts for router logits [T, n_expert]; `selection_bias` [n_expert] counts for the choice only."""
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


def _highest(scores: Tensor, n: int) -> Tensor:
    """Places of the n highest of each row, best first, equal ones in ascending order: [T, m] -> int64 [T, n]."""
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :n].contiguous()


def _ordered_sum(values: Tensor) -> Tensor:
    """Sum over the last dimension in ascending order, one add after another: [T, n] -> [T, 1]."""
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
