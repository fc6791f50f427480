"""What a generation request is between the web and the backbone, and the events that come back.

The API builds requests and reads events, the backbone's task reads requests and writes events; both sides meet in the
JSON that these classes read and write. Parsing is strict. Nothing here knows tokens' meaning, Redis or the engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvasir.errors import RequestError

MAX_CHOICES = 8
MAX_REQUEST_CHARS = 4 * 1024 * 1024
SAMPLING_FIELDS = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
        "seed", "stop", "max_tokens", "logprobs", "logit_bias",
    }
)  # fmt: skip
_REQUEST_ID = re.compile(r"[0-9a-f]{32}")


class RequestKind(StrEnum):
    """What the client gave: a prompt to go on from, or messages for the model's chat template."""

    COMPLETION = "completion"
    CHAT = "chat"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request as the API has checked it. Exactly one of `prompt` and `messages` is given, as `kind` says.

    `sampling` has the names of `SamplingParams`; ranges are checked by the backbone. `created` is in Unix
    seconds, `deadline_s` counts from the moment that a backbone takes the request. `strict`: every worker's answer is
    confirmed before it is used. `owner` is the public id of the key that asked, who alone may read the request's
    record.
    """

    request_id: str  # 32 lower-case hex digits
    model: str
    kind: RequestKind
    deadline_s: float
    created: float
    prompt: str | tuple[int, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    n: int = 1
    sampling: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    owner: str = ""

    def __post_init__(self) -> None:
        if not _REQUEST_ID.fullmatch(self.request_id):
            raise RequestError(f"request_id is {self.request_id[:80]!r}; it must be 32 lower-case hex digits")
        if not self.model:
            raise RequestError("model is empty; it must name a model")
        if not 1 <= self.n <= MAX_CHOICES:
            raise RequestError(f"n is {self.n}; it must be from 1 to {MAX_CHOICES}")
        if not 0 < self.deadline_s < float("inf"):
            raise RequestError(f"deadline_s is {self.deadline_s}; it must be more than 0 seconds")
        unknown = sorted(set(self.sampling) - SAMPLING_FIELDS)
        if unknown:
            raise RequestError(f"sampling has {unknown[0]!r}; known are {', '.join(sorted(SAMPLING_FIELDS))}")
        has_prompt, has_messages = self.prompt is not None, self.messages is not None
        if (has_prompt, has_messages) != (self.kind is RequestKind.COMPLETION, self.kind is RequestKind.CHAT):
            raise RequestError("a completion has a prompt, a chat has messages, and neither has the other")

    def to_json(self) -> str:
        """One line of JSON. Raises RequestError when a value is no JSON, or the request is too large to travel."""
        values = {name: getattr(self, name) for name in _REQUEST_TYPES}
        values |= {"prompt": self.prompt, "messages": self.messages}
        try:
            text = json.dumps(values, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"the request holds something that is no JSON: {error}") from error
        if len(text) > MAX_REQUEST_CHARS:
            raise RequestError(f"the request has {len(text)} characters; at most {MAX_REQUEST_CHARS} are allowed")
        return text

    @classmethod
    def from_json(cls, text: str) -> GenerationRequest:
        """Parse strictly. Raises RequestError that names the field that is missing, unknown or of another type."""
        values = _object(text, "the request")
        _check_names(values, required=set(_REQUEST_TYPES), optional={"prompt", "messages"})
        for name, kinds in _REQUEST_TYPES.items():
            _check_type(name, values[name], kinds)
        kind = _one_of(RequestKind, values["kind"])
        prompt, messages = values.get("prompt"), values.get("messages")
        return cls(**values | {"kind": kind, "prompt": _prompt(prompt), "messages": _messages(messages)})


_REQUEST_TYPES: Mapping[str, tuple[type, ...]] = {
    "request_id": (str,),
    "model": (str,),
    "kind": (str,),
    "n": (int,),
    "sampling": (dict,),
    "created": (int, float),
    "deadline_s": (int, float),
    "strict": (bool,),
    "owner": (str,),
}


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{what} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise RequestError(f"{what} is a JSON {type(values).__name__}; it must be an object")
    return values


def _check_names(values: Mapping[str, Any], required: set[str], optional: set[str]) -> None:
    if missing := sorted(required - set(values)):
        raise RequestError(f"the field {missing[0]!r} is missing")
    if unknown := sorted(set(values) - required - optional):
        raise RequestError(f"the field {unknown[0]!r} is unknown")


def _check_type(name: str, value: object, kinds: tuple[type, ...]) -> None:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise RequestError(f"{name} is {str(value)[:80]!r}; its type must be {' or '.join(k.__name__ for k in kinds)}")


def _one_of(kinds: type[RequestKind], value: str) -> RequestKind:
    if value not in list(kinds):
        raise RequestError(f"kind is {value[:80]!r}; it must be one of {', '.join(kinds)}")
    return kinds(value)


def _prompt(prompt: object) -> str | tuple[int, ...] | None:
    if prompt is None or isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Sequence) and all(isinstance(t, int) and not isinstance(t, bool) for t in prompt):
        return tuple(prompt)
    raise RequestError("prompt must be a text or a list of token ids")


def _messages(messages: object) -> tuple[Mapping[str, Any], ...] | None:
    if messages is None:
        return None
    if isinstance(messages, Sequence) and all(isinstance(message, dict) for message in messages):
        return tuple(messages)
    raise RequestError("messages must be a list of objects")
