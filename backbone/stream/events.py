"""The events of one generation and their JSON.

The backbone writes them to a stream, `client.read` yields them to the API. A stream ends with `Done` or `Failed`;
`Failed` may come at any time. Parsing is strict: an unknown event is an error and never skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kvasir.errors import KvasirError


class EventError(KvasirError):
    """A stream entry, record or trace that this version cannot read."""


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits in the backbone; `position` 1 is next. Repeated when the position changes."""

    position: int


@dataclass(frozen=True, slots=True)
class Started:
    """The first choice has a slot. `fingerprint` is the API's system_fingerprint."""

    prompt_tokens: int
    model: str
    fingerprint: str
    backbone: str


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the likeliest tokens. `data` is the token's bytes, perhaps not whole characters."""

    token: int
    data: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Token:
    """One new token of a choice. `text` is the text to show now; it may be empty, or include earlier tokens' text.

    `data` (the token's own bytes), `logprob` and `top_logprobs` are set if the request wants log-probabilities.
    """

    choice: int
    token: int
    text: str
    data: bytes | None = None
    logprob: float | None = None
    top_logprobs: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """A choice is complete, by "stop" or "length". `completion_tokens` includes an end-of-text token."""

    choice: int
    finish_reason: str
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the request: those of the prompt once, those of all choices together."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class SwarmShare:
    """The number of the request's row-experts, and the share of each source (0 to 1; their sum is 1).

    `unconfirmed` are workers whose answers it used before a check. It is flagged if some of these, `flagged_workers`,
    are known to have lied. Both lists are sorted and bounded. `n_drafted` tokens were guessed and computed ahead,
    `n_accepted` of them were accepted.
    """

    row_experts: int
    workers: float
    hot: float
    fallback: float
    flagged: bool = False
    flagged_workers: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()
    n_drafted: int = 0
    n_accepted: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """All choices are complete; the last event."""

    usage: Usage
    kvasir: SwarmShare


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended before its answer was complete; the last event. `status` is an HTTP status."""

    status: int
    code: str
    message: str


Event = Queued | Started | Token | End | Done | Failed

_KINDS: Mapping[str, type[Event]] = {
    "queued": Queued,
    "started": Started,
    "token": Token,
    "end": End,
    "done": Done,
    "error": Failed,
}
_encode = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would create an encoder for each event
_NAMES = {kind: name for name, kind in _KINDS.items()}


def is_last(event: Event) -> bool:
    """Return whether the event is the last of its stream."""
    return isinstance(event, Done | Failed)


def event_to_json(event: Event) -> str:
    """Return one line of JSON with `kind`."""
    if isinstance(event, Token):  # by hand, for speed: every token has one
        values: dict[str, Any] = {"kind": "token", "choice": event.choice, "token": event.token, "text": event.text}
        if event.logprob is not None:
            values["logprob"] = event.logprob
            values["data"] = (event.data or b"").hex()
            values["top_logprobs"] = [[top.token, top.data.hex(), top.logprob] for top in event.top_logprobs]
        return _encode(values)
    return _encode({"kind": _NAMES[type(event)], **asdict(event)})


def event_from_json(text: str | bytes) -> Event:
    """Parse the event of a stream entry. Raises EventError."""
    try:
        values = json.loads(text)
        kind = values.pop("kind")
        return _READERS.get(kind, _KINDS[kind])(**values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EventError(f"a stream entry is not an event: {text[:200]!r} ({type(error).__name__}: {error})") from error


def _token(
    choice: int, token: int, text: str, logprob: float | None = None, data: str | None = None, top_logprobs: Any = ()
) -> Token:
    tops = tuple(TopLogprob(other, bytes.fromhex(shown), value) for other, shown, value in top_logprobs)
    return Token(choice, token, text, None if data is None else bytes.fromhex(data), logprob, tops)


def _done(usage: Mapping[str, Any], kvasir: Mapping[str, Any]) -> Done:
    lists = {name: tuple(kvasir.get(name, ())) for name in ("flagged_workers", "unconfirmed")}
    return Done(Usage(**usage), SwarmShare(**{**kvasir, **lists}))


_READERS: Mapping[str, Callable[..., Event]] = {"token": _token, "done": _done}
