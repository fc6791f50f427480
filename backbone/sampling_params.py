"""The sampling parameters of a request: names, defaults, ranges, and their form in JSON.

The API and the commands build them, a request carries them to the backbone, the engine's `sampling` package uses them.
Never imports torch. A new parameter is a field here and, for clients, a field of `backbone.api.chat.schemas`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from kvasir.errors import RequestError

MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_LOGPROBS = 20
MAX_BIASED_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen and when a text ends. By default tokens are drawn from the model's distribution.

    `seed` None: the backbone draws one. `logprobs` None reports no log-probabilities, N those of the chosen token and
    of the N likeliest. `stop` and `logit_bias` are copied. Raises RequestError for a value out of its range.
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

    def to_values(self) -> dict[str, Any]:
        """Return the values that differ from the defaults, by name and ready for JSON."""
        given = {name: value for name in _NAMES if (value := getattr(self, name)) != getattr(_DEFAULTS, name)}
        return given | {"logit_bias": dict(self.logit_bias)} if "logit_bias" in given else given

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Return the parameters that a JSON object holds; a null stands for the default.

        Raises RequestError for an unknown name or a value out of its range.
        """
        unknown = sorted(set(values) - set(_NAMES))
        if unknown:
            raise RequestError(f"sampling has {unknown[0]!r}; known are {', '.join(sorted(_NAMES))}")
        given = {name: value for name, value in values.items() if value is not None}
        if isinstance(bias := given.get("logit_bias"), Mapping):
            given["logit_bias"] = {_token_id(token): value for token, value in bias.items()}
        return cls(**given)

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


def _token_id(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise RequestError(f"logit_bias has the key {text[:80]!r}; keys must be token ids")
    return int(text)


def _check_number(name: str, value: float, low: float, high: float, *, above: bool = False) -> None:
    """Raise RequestError unless low <= value <= high; with `above`, `low` itself is refused too."""
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


_NAMES = tuple(one.name for one in fields(SamplingParams))
_DEFAULTS = SamplingParams()
