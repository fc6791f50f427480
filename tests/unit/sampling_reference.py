"""Sampling as the words of `backbone.engine.sampling.choice` say it, over the whole vocabulary and without a shortcut.

The tests compare with it to the bit. It is slow on purpose and must stay as it is: a change here changes texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from backbone.engine.sampling.choice import RandomDraw, Sampled, TokenLogprob
from backbone.sampling_params import SamplingParams


def reference_sample(
    logits: NDArray[np.float32],
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    params: SamplingParams,
    draw: RandomDraw | None,
) -> Sampled:
    """What `sample` must find."""
    adjusted = _adjusted(logits.astype(np.float64), prompt_ids, output_ids, params)
    if draw is None:
        token = int(adjusted.argmax())
    else:
        ids, weights = reference_candidates(adjusted, params)
        cumulative = np.cumsum(weights)
        index = np.searchsorted(cumulative, draw.uniform() * cumulative[-1], side="right")
        token = int(ids[min(index, np.searchsorted(cumulative, cumulative[-1]))])
    if params.logprobs is None:
        return Sampled(token)
    own = logits.astype(np.float64)
    own -= own.max()
    own -= np.log(np.exp(own).sum())
    best = np.argsort(-own, kind="stable")[: params.logprobs]
    return Sampled(token, float(own[token]), tuple(TokenLogprob(int(other), float(own[other])) for other in best))


def reference_candidates(
    logits: NDArray[np.float64], params: SamplingParams
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """What `candidates` must find."""
    with np.errstate(over="ignore"):
        scaled = (logits - logits.max()) / params.temperature
    ids = np.arange(logits.size)
    if params.top_k or params.top_p < 1:
        ids = np.argsort(-logits, kind="stable")
    if params.top_k:
        ids = ids[: params.top_k]
    if params.top_p < 1:
        all_weights = np.exp(scaled if params.top_k == 0 else scaled[ids])  # the total is added in this order
        n_below = int(np.searchsorted(np.cumsum(np.exp(scaled[ids])), params.top_p * all_weights.sum()))
        ids = ids[: n_below + 1]
    if params.min_p > 0:
        ids = ids[scaled[ids] >= np.log(params.min_p)]
    return ids, np.exp(scaled[ids])


def _adjusted(
    logits: NDArray[np.float64], prompt_ids: Sequence[int], output_ids: Sequence[int], params: SamplingParams
) -> NDArray[np.float64]:
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    for token in sorted({*prompt_ids, *output_ids}):
        penalty = params.repetition_penalty
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    for token, count in Counter(output_ids).items():
        logits[token] -= params.presence_penalty + params.frequency_penalty * count
    return logits
