"""The sampling parameters of a request, their ranges, and the errors that name both.

REST and the command line build them from a request, and `sampling.choice` reads them; they are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from kvasir.errors import RequestError

MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_LOGPROBS = 20
MAX_BIASED_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen and when a text ends. The defaults sample from the model's own distribution.

    `seed` None lets the engine choose one. `logprobs` None reports none, n reports the chosen token's and the n best.
    `stop` and `logit_bias` are copied. Raises RequestError on a value out of its range.
    """

    temperature: float = 1.0  # 0: always the likeliest token
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: Sequence[str] = ()
    max_tokens: int | None = None  # None: up to the end of the context
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, 0.0, 2.0)
        _check_integer("top_k", self.top_k, 0, 1 << 31)
        _check_number("top_p", self.top_p, 0.0, 1.0, above=True)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.0, 10.0, above=True)
        if self.seed is not None:
            _check_integer("seed", self.seed, 0, (1 << 64) - 1)
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 1, 1 << 31)
        if self.logprobs is not None:
            _check_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        object.__setattr__(self, "stop", _checked_stops(self.stop))
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))

    @property
    def is_greedy(self) -> bool:
        """Return whether no random number is drawn."""
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        """Return whether earlier tokens change the logits."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    def check_vocabulary(self, n_vocab: int) -> None:
        """Raise RequestError if `logit_bias` names a token that is not in the vocabulary."""
        unknown = [token for token in self.logit_bias if token >= n_vocab]
        if unknown:
            raise RequestError(f"logit_bias names token {unknown[0]}; this model's ids go from 0 to {n_vocab - 1}")


def _check_number(name: str, value: float, low: float, high: float, *, above: bool = False) -> None:
    """Raise RequestError unless the value is a number in the range; `above` excludes the lower end."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and low <= value <= high and not (above and value == low):  # a NaN is in no range
        return
    least = f"above {low:g}" if above else f"of {low:g} or more"
    raise RequestError(f"{name} is {value!r}; it must be a number {least} and at most {high:g}")


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RequestError(f"{name} is {value!r}; it must be a whole number from {low} to {high}")


def _checked_stops(stops: object) -> tuple[str, ...]:
    if isinstance(stops, str) or not isinstance(stops, Sequence):
        raise RequestError(f"stop is {stops!r}; it must be a list of strings")
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop has {len(stops)} strings; at most {MAX_STOPS} are allowed")
    for stop in stops:
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP_LENGTH:
            shown = repr(stop)[:80]
            raise RequestError(f"stop has {shown}; each must be a string of 1 to {MAX_STOP_LENGTH} characters")
    return tuple(stops)


def _checked_bias(bias: object) -> Mapping[int, float]:
    if not isinstance(bias, Mapping):
        raise RequestError(f"logit_bias is {bias!r}; it must map token ids to numbers")
    if len(bias) > MAX_BIASED_TOKENS:
        raise RequestError(f"logit_bias has {len(bias)} tokens; at most {MAX_BIASED_TOKENS} are allowed")
    for token, value in bias.items():
        _check_integer("a token of logit_bias", token, 0, (1 << 31) - 1)
        _check_number(f"logit_bias of token {token}", value, -100.0, 100.0)
    return MappingProxyType(dict(bias))
