"""A generation request and its JSON, which travels from the web process to the backbone.

The API builds requests, the backbone's task reads them. Parsing is strict. Nothing here imports Redis or the engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from backbone.sampling_params import SamplingParams
from kvasir.errors import RequestError

MAX_CHOICES = 8
MAX_REQUEST_CHARS = 4 * 1024 * 1024
_REQUEST_ID = re.compile(r"[0-9a-f]{32}")


class RequestKind(StrEnum):
    """The client's input: a prompt to continue, or messages for the model's chat template."""

    COMPLETION = "completion"
    CHAT = "chat"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A checked request. It has a `prompt` if `kind` is COMPLETION, else `messages`.

    `created` is in Unix seconds, `deadline_s` counts from the moment that a backbone takes the request. With `strict`
    every worker's answer is confirmed before it is used. `owner` is the public id of the API key that sent the request;
    only that key may read the request's record.
    """

    request_id: str  # 32 lower-case hex digits
    model: str
    kind: RequestKind
    deadline_s: float
    created: float
    prompt: str | tuple[int, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    n: int = 1
    sampling: SamplingParams = field(default_factory=SamplingParams)
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
        has_prompt, has_messages = self.prompt is not None, self.messages is not None
        if (has_prompt, has_messages) != (self.kind is RequestKind.COMPLETION, self.kind is RequestKind.CHAT):
            raise RequestError("a completion has a prompt, a chat has messages, and neither has the other")

    def to_json(self) -> str:
        """Return one line of JSON. Raises RequestError if a value has no JSON form, or for too large a request."""
        values = {name: getattr(self, name) for name in _REQUEST_TYPES}
        values |= {"sampling": self.sampling.to_values(), "prompt": self.prompt, "messages": self.messages}
        try:
            text = json.dumps(values, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"the request cannot be written as JSON: {error}") from error
        if len(text) > MAX_REQUEST_CHARS:
            raise RequestError(f"the request has {len(text)} characters; at most {MAX_REQUEST_CHARS} are allowed")
        return text

    @classmethod
    def from_json(cls, text: str) -> GenerationRequest:
        """Parse strictly. Raises RequestError naming the field that is missing, unknown or invalid."""
        values = _object(text)
        _check_names(values, required=set(_REQUEST_TYPES), optional={"prompt", "messages"})
        for name, kinds in _REQUEST_TYPES.items():
            _check_type(name, values[name], kinds)
        read = {
            "kind": _one_of(RequestKind, values["kind"]),
            "sampling": SamplingParams.from_values(values["sampling"]),
            "prompt": _prompt(values.get("prompt")),
            "messages": _messages(values.get("messages")),
        }
        return cls(**values | read)


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


def _object(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the request is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise RequestError(f"the request is a JSON {type(values).__name__}; it must be an object")
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
