"""The choice of the next token: a pure function of logits, history, parameters and one counted random draw.

The engine calls it for each sequence after each step. All arithmetic is float64, ties go to the lowest id, and the
random number depends on seed, choice and position alone: a request gives the same text beside any other requests.

The order is the usual one: logit bias, repetition penalty, presence and frequency penalty, temperature, then top-k,
top-p and min-p, each on the distribution that the former left. Log-probabilities are the model's own, before all these.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backbone.engine.sampling.weights import (
    Positions,
    Values,
    Weights,
    at_least,
    descending,
    largest,
    lower_bound,
    n_in_share,
    nucleus,
    pick,
    row_weights,
    scaled,
    weights_of,
)
from backbone.sampling_params import SamplingParams
from kvasir.errors import RequestError


@dataclass(frozen=True, slots=True)
class RandomDraw:
    """One random number by its coordinates: `choice` numbers the answers to one request, `position` their tokens."""

    seed: int
    choice: int
    position: int

    def uniform(self) -> float:
        """Return a float64 in [0, 1) with 53 random bits, from a counter-based generator (Philox 4x64)."""
        key = np.array([self.seed, self.choice], dtype=np.uint64)
        bits = int(np.random.Philox(key=key, counter=self.position).random_raw())
        return float((bits >> 11) * 2.0**-53)


class TokenHistory:
    """The tokens of a sequence, for the penalties: the prompt's, and the generated ones with their counts."""

    def __init__(self, prompt_ids: Iterable[int] = ()) -> None:
        self._seen = array("q", dict.fromkeys(prompt_ids))
        self._prompt_ids = frozenset(self._seen)
        self._generated, self._counts = array("q"), array("d")
        self._where: dict[int, int] = {}  # index of each token in `_generated`

    def add(self, token: int) -> None:
        """Count a generated token."""
        where = self._where.setdefault(token, len(self._generated))
        if where < len(self._generated):
            self._counts[where] += 1
            return
        self._generated.append(token)
        self._counts.append(1)
        if token not in self._prompt_ids:
            self._seen.append(token)

    def generated(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the ids of the generated tokens, and their counts."""
        return np.array(self._generated, np.int64), np.array(self._counts, np.float64)

    def seen(self) -> NDArray[np.int64]:
        """Return the ids of all tokens of prompt and answer, each once."""
        return np.array(self._seen, np.int64)


class TokenLogprob(NamedTuple):
    """A token and the model's log-probability of it."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Sampled:
    """The chosen token; `logprob` and the best tokens, likeliest first, only where the parameters ask for them."""

    token: int
    logprob: float | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()


def sample(
    logits: NDArray[np.float32], history: TokenHistory, params: SamplingParams, draw: RandomDraw | None
) -> Sampled:
    """Choose the next token. `logits` is f32 [n_vocab] and not changed; `draw` may be None for temperature 0.

    Raises RequestError when the logits are not finite, or a draw is needed and missing.
    """
    if logits.ndim != 1 or not np.isfinite(logits).all():
        raise RequestError(_describe_bad_logits(logits))
    adjusted = _adjust(logits, history, params)
    if params.is_greedy:
        token = int(adjusted.argmax())
    elif draw is None:
        raise RequestError(f"temperature {params.temperature:g} needs a random draw; only temperature 0 does without")
    else:
        token = _draw(adjusted, params, draw.uniform())
    if params.logprobs is None:
        return Sampled(token)
    return _with_logprobs(token, logits, params.logprobs)


def candidates(logits: Values, params: SamplingParams) -> tuple[Positions, Weights]:
    """Return the tokens that temperature, top-k, top-p and min-p leave of `logits` [n_vocab], and their weights.

    At least one token is left. Weights are not normalised: the likeliest has 1. The temperature must be above 0.
    """
    best, temperature = float(logits.max()), params.temperature
    if params.top_k:
        ids = largest(logits, params.top_k)
        weights = weights_of(logits[ids], best, temperature)
        if params.top_p < 1:
            n_kept = n_in_share(weights, params.top_p * weights.sum())
            ids, weights = ids[:n_kept], weights[:n_kept]
    elif params.top_p < 1:
        ids, weights = nucleus(logits, best, temperature, params.top_p)
    elif params.min_p > 0:
        ids = _near(logits, best, temperature, float(np.log(params.min_p)))
        weights = weights_of(logits[ids], best, temperature)
    else:
        ids, weights = np.arange(logits.size), weights_of(logits, best, temperature)
    if params.min_p > 0:
        is_kept = scaled(logits[ids], best, temperature) >= np.log(params.min_p)
        ids, weights = ids[is_kept], weights[is_kept]
    return ids, weights


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return log-probabilities, float64 [n_vocab]."""
    best, log_sum = _normalisation(logits)
    return scaled(logits, best, 1) - log_sum


def _normalisation(logits: NDArray[np.float32]) -> tuple[float, float]:
    """Return the largest logit, and the logarithm of the sum of weights relative to it."""
    best = float(logits.max())
    return best, float(np.log(row_weights(logits, best, 1).sum()))


def _adjust(logits: NDArray[np.float32], history: TokenHistory, params: SamplingParams) -> Values:
    """Apply logit bias and penalties in float64; return the logits themselves where there are none."""
    if not params.logit_bias and not params.has_penalties:
        return logits
    adjusted = logits.astype(np.float64)
    if params.logit_bias:
        params.check_vocabulary(adjusted.size)
        for token, bias in params.logit_bias.items():
            adjusted[token] += bias
    if params.repetition_penalty != 1:
        seen = history.seen()
        values, penalty = adjusted[seen], params.repetition_penalty
        adjusted[seen] = np.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty or params.frequency_penalty:
        ids, counts = history.generated()
        adjusted[ids] -= params.presence_penalty + params.frequency_penalty * counts
    return adjusted


def _draw(logits: Values, params: SamplingParams, uniform: float) -> int:
    """Return the token among the candidates that `uniform` points at."""
    if params.top_k or params.top_p < 1 or params.min_p > 0:
        ids, weights = candidates(logits, params)
        return int(ids[pick(weights, uniform)])
    return pick(row_weights(logits, float(logits.max()), params.temperature), uniform)


def _near(logits: Values, best: float, temperature: float, floor: float) -> Positions:
    """Return the ascending ids of all tokens whose scaled logit reaches `floor`, and of few others."""
    bound = best + floor * temperature - 1e-12 * (abs(best) - floor * temperature)
    is_below = (
        scaled(np.array([bound]), best, temperature)[0] < floor
    )  # then so are all smaller values, as scaling is monotone
    return at_least(logits, bound if is_below else -np.inf)


def _with_logprobs(token: int, logits: NDArray[np.float32], n_best: int) -> Sampled:
    """Return the chosen token with its log-probability and the `n_best` likeliest."""
    best, log_sum = _normalisation(logits)
    ids = _near_best(logits, n_best, best, log_sum)
    own = scaled(logits[ids], best, 1) - log_sum
    order = descending(own)[:n_best]
    chosen = float(scaled(logits[[token]], best, 1)[0] - log_sum)
    return Sampled(token, chosen, tuple(TokenLogprob(int(ids[at]), float(own[at])) for at in order))


def _near_best(logits: NDArray[np.float32], n_best: int, best: float, log_sum: float) -> Positions:
    """Return the ascending ids of all tokens that may be among the likeliest, where ties go to the lowest id.

    Rounding makes log-probabilities equal whose logits differ by less than the slack here.
    """
    if n_best == 0:
        return np.empty(0, np.int64)
    bound = lower_bound(logits, min(n_best, logits.size))
    return at_least(logits, bound - 1e-12 * (abs(bound) + abs(best) + log_sum))


def _describe_bad_logits(logits: NDArray[np.float32]) -> str:
    if logits.ndim != 1:
        return f"logits have shape {logits.shape}; one row [n_vocab] is wanted"
    bad = np.flatnonzero(~np.isfinite(logits))
    return f"the model gave {logits[bad[0]]} for token {bad[0]} ({bad.size} of {logits.size} logits are not finite)"
