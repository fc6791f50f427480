"""The events of one generation, from the backbone to whoever reads its stream, and their JSON.

The backbone writes them, `stream.read` yields them to the API. A stream ends with `Done` or `Failed`; `Failed` may come
at any time. Parsing is strict: an event that is not understood is an error, never a gap.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kvasir.errors import KvasirError


class EventError(KvasirError):
    """A stream entry is not an event that this version knows."""


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits in the backbone; `position` 1 is next. Comes again when the position changes."""

    position: int


@dataclass(frozen=True, slots=True)
class Started:
    """The first choice got its slot. `fingerprint` is the API's system_fingerprint."""

    prompt_tokens: int
    model: str
    fingerprint: str
    backbone: str


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the likeliest tokens. `data` is the token's bytes, which need not be whole characters."""

    token: int
    data: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Token:
    """One new token of a choice. `text` is what may be shown now: it may be empty, or belong to earlier tokens too.

    `data`, `logprob` and `top_logprobs` only where the request asked for log-probabilities; `data` is the token's own.
    """

    choice: int
    token: int
    text: str
    data: bytes | None = None
    logprob: float | None = None
    top_logprobs: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """A choice is complete: "stop" or "length". `completion_tokens` counts an end-of-text token too."""

    choice: int
    finish_reason: str
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the request; the prompt counts once, completions of all choices add up."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class SwarmShare:
    """Who computed the request's own row-experts: how many there were, and the shares (0 to 1, together 1).

    `unconfirmed` are workers whose answers it used before anybody had checked them. It is flagged when one of these,
    the `flagged_workers`, is known to have lied. Both lists are sorted and bounded. Of its tokens `n_drafted` were
    guessed and computed ahead, and `n_accepted` of these were right.
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
    """The request ended without an answer, or in the middle of one; the last event. `status` is HTTP's."""

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
_encode = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make an encoder for each event
_NAMES = {kind: name for name, kind in _KINDS.items()}


def is_last(event: Event) -> bool:
    """Whether nothing follows in the stream."""
    return isinstance(event, Done | Failed)


def event_to_json(event: Event) -> str:
    """One line of JSON with `kind`."""
    if isinstance(event, Token):  # by hand: this is the one that is written for every token
        values: dict[str, Any] = {"kind": "token", "choice": event.choice, "token": event.token, "text": event.text}
        if event.logprob is not None:
            values["logprob"] = event.logprob
            values["data"] = (event.data or b"").hex()
            values["top_logprobs"] = [[top.token, top.data.hex(), top.logprob] for top in event.top_logprobs]
        return _encode(values)
    return _encode({"kind": _NAMES[type(event)], **asdict(event)})


def event_from_json(text: str | bytes) -> Event:
    """The event of a stream entry. Raises EventError."""
    try:
        values = json.loads(text)
        kind = values.pop("kind")
        return _READERS.get(kind, _KINDS[kind])(**values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EventError(f"a stream entry is no event: {text[:200]!r} ({type(error).__name__}: {error})") from error


def _token(
    choice: int, token: int, text: str, logprob: float | None = None, data: str | None = None, top_logprobs: Any = ()
) -> Token:
    tops = tuple(TopLogprob(other, bytes.fromhex(shown), value) for other, shown, value in top_logprobs)
    return Token(choice, token, text, None if data is None else bytes.fromhex(data), logprob, tops)


def _done(usage: Mapping[str, Any], kvasir: Mapping[str, Any]) -> Done:
    lists = {name: tuple(kvasir.get(name, ())) for name in ("flagged_workers", "unconfirmed")}
    return Done(Usage(**usage), SwarmShare(**{**kvasir, **lists}))


_READERS: Mapping[str, Callable[..., Event]] = {"token": _token, "done": _done}
