"""The choice of the next token: a pure function of logits, history, parameters and one counted random draw.

Called by the engine for each sequence after each step. All arithmetic is float64, equal values go by the lowest id, and
the random number depends on seed, choice and position alone: the same request gives the same text whatever else runs.

The order is the field's: logit bias, repetition penalty, presence and frequency penalty, temperature, then top-k, top-p
and min-p, each on the distribution that the former left. Log-probabilities are the model's own, before all of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backbone.engine.sampling_params import SamplingParams
from kvasir.errors import RequestError

_DEPTHS = (12.0, 24.0, 48.0)  # how far below the best logit top-p looks before it looks at the whole vocabulary
_SUM_SLACK = 1e-12  # more than a sum of any vocabulary's weights may be off by its rounding
_BLOCK = 64  # neighbours of which top-k first compares only the best


@dataclass(frozen=True, slots=True)
class RandomDraw:
    """One random number by its coordinates: `choice` numbers the answers to one request, `position` their tokens."""

    seed: int
    choice: int
    position: int

    def uniform(self) -> float:
        """A float64 in [0, 1) with 53 random bits, from a counter-based generator (Philox 4x64)."""
        key = np.array([self.seed, self.choice], dtype=np.uint64)
        bits = int(np.random.Philox(key=key, counter=self.position).random_raw())
        return float((bits >> 11) * 2.0**-53)


class TokenHistory:
    """What a sequence has said, for the penalties: the prompt's tokens, and how often each was generated."""

    def __init__(self, prompt_ids: Iterable[int] = ()) -> None:
        self._prompt_ids = frozenset(prompt_ids)
        self._generated: Counter[int] = Counter()

    def add(self, token: int) -> None:
        """Count a generated token."""
        self._generated[token] += 1

    def generated(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Ids of the generated tokens, and their counts."""
        ids = np.fromiter(self._generated.keys(), np.int64, len(self._generated))
        return ids, np.fromiter(self._generated.values(), np.float64, len(self._generated))

    def seen(self) -> NDArray[np.int64]:
        """Ids of all tokens of prompt and answer, each once."""
        seen = self._prompt_ids | self._generated.keys()
        return np.fromiter(seen, np.int64, len(seen))


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
    """Choose the next token. `logits` is f32 [n_vocab] and left as it is; `draw` may be None for temperature 0.

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
        token = _choose(*candidates(adjusted, params), draw.uniform())
    if params.logprobs is None:
        return Sampled(token)
    own = log_softmax(logits)
    best = _best(own, params.logprobs)
    return Sampled(token, float(own[token]), tuple(TokenLogprob(int(other), float(own[other])) for other in best))


def candidates(logits: NDArray[np.float64], params: SamplingParams) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The tokens that temperature, top-k, top-p and min-p leave of `logits` [n_vocab], and their weights.

    At least one token; the weights are not normalised, the likeliest has 1. The temperature must be above 0.
    """
    with np.errstate(over="ignore"):  # a tiny temperature makes -inf of all but the likeliest, which is what it means
        scaled = (logits - logits.max()) / params.temperature
    if params.top_k:
        ids = _best(logits, params.top_k)
        if params.top_p < 1:
            ids = ids[_nucleus(logits[ids], scaled[ids], params.top_p)]
    else:
        ids = _nucleus(logits, scaled, params.top_p) if params.top_p < 1 else np.arange(scaled.size)
    if params.min_p > 0:
        ids = ids[scaled[ids] >= np.log(params.min_p)]
    return ids, np.exp(scaled[ids])


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities, float64 [n_vocab]."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max()
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def _adjust(logits: NDArray[np.float32], history: TokenHistory, params: SamplingParams) -> NDArray[np.float64]:
    """Logit bias and penalties, in float64."""
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


def _best(values: NDArray[np.float64], n_best: int) -> NDArray[np.int64]:
    """Where the n largest values are, largest first, equals by position."""
    if n_best >= values.size:
        return np.argsort(-values, kind="stable")
    if n_best == 0:
        return np.empty(0, np.int64)
    found = _contenders(values, n_best)
    return found[np.argsort(-values[found], kind="stable")][:n_best]


def _contenders(values: NDArray[np.float64], n_best: int) -> NDArray[np.int64]:
    """Ascending positions of the n largest values and of few others: of all that are no less than some n of them."""
    some, n_block = values, values.size // _BLOCK
    if n_block >= 2 * n_best:
        some = values[: n_block * _BLOCK].reshape(n_block, _BLOCK).max(axis=1)
    return np.flatnonzero(values >= np.partition(some, some.size - n_best)[some.size - n_best])


def _nucleus(logits: NDArray[np.float64], scaled: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Positions of the fewest largest logits whose weights make up the share `top_p` of all.

    Scaling rounds close values together, so the order is the logits' own. The largest logits decide alone where the
    others together, at most, would not change the number.
    """
    for depth in _DEPTHS:
        near = np.flatnonzero(scaled >= -depth)
        order = near[np.argsort(-logits[near], kind="stable")]
        sums = np.cumsum(np.exp(scaled[order]))
        rest = (scaled.size - near.size) * np.exp(-depth)  # at most
        least, most = top_p * sums[-1] * (1 - _SUM_SLACK), top_p * (sums[-1] + rest) * (1 + _SUM_SLACK)
        n_below = np.searchsorted(sums, (least, most))
        if n_below[0] == n_below[1] < order.size:
            return order[: n_below[0] + 1]
    return _plain_nucleus(logits, scaled, top_p)


def _plain_nucleus(logits: NDArray[np.float64], scaled: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """What `_nucleus` finds, from all weights."""
    order = np.argsort(-logits, kind="stable")
    wanted = top_p * np.exp(scaled).sum()
    return order[: int(np.searchsorted(np.cumsum(np.exp(scaled[order])), wanted)) + 1]


def _choose(ids: NDArray[np.int64], weights: NDArray[np.float64], uniform: float) -> int:
    cumulative = np.cumsum(weights)
    index = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
    last = np.searchsorted(cumulative, cumulative[-1])  # rounding may reach the total itself
    return int(ids[min(index, last)])


def _describe_bad_logits(logits: NDArray[np.float32]) -> str:
    if logits.ndim != 1:
        return f"logits have shape {logits.shape}; one row [n_vocab] is wanted"
    bad = np.flatnonzero(~np.isfinite(logits))
    return f"the model gave {logits[bad[0]]} for token {bad[0]} ({bad.size} of {logits.size} logits are not finite)"
