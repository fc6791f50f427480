"""Replies of a body's generation: one JSON object, or a stream of server-sent events.

`routes` calls it. A whole reply is never partial: the first failure becomes the reply. A stream sends all events that
are ready in one write, heartbeats in between, and a failure as an `error` event. It closes its generation as soon as
the client disconnects, even before the first byte.
"""

from __future__ import annotations

import json
import weakref
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from django.http import StreamingHttpResponse

from backbone.api.chat.forms import form_for
from backbone.api.chat.generation import Generation, Happened
from backbone.api.chat.requests import Asked
from backbone.api.chat.usage import UsageTally
from backbone.api.errors import ApiError, from_exception, from_failed
from backbone.stream.events import End, Failed, Queued, Started, Token

HEARTBEAT_S = 5.0
PATIENCE_S = 15.0  # until the headers: longer than it takes to find that no backbone runs
WAIT_S = 60.0  # of a whole reply for further events; the generation has its own deadline
DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": heartbeat\n\n"
_to_json = json.JSONEncoder(separators=(",", ":")).encode


class EventStream(StreamingHttpResponse):
    """The HTTP reply of a stream. Closing or dropping it closes its generation."""

    def __init__(self, parts: AsyncGenerator[bytes, None], generation: Generation) -> None:
        super().__init__(parts, content_type="text/event-stream; charset=utf-8")
        self["Cache-Control"] = "no-cache, no-transform"
        self["X-Accel-Buffering"] = "no"
        self._let_go = weakref.finalize(self, generation.close_soon)
        self._let_go.atexit = False

    def close(self) -> None:
        """Close the generation. Django calls this at the end, on another thread."""
        self._let_go()
        super().close()


async def whole_reply(generation: Generation, asked: Asked) -> dict[str, Any]:
    """Return the reply's body and close the generation. Raises ApiError."""
    fingerprint = ""
    tokens: defaultdict[int, list[Token]] = defaultdict(list)
    reasons: dict[int, str] = {}
    try:
        while generation.n_unfinished:
            for number, event in await generation.next(WAIT_S):
                match event:
                    case Failed():
                        raise from_failed(event, asked.prompt_field)
                    case Started():
                        fingerprint = event.fingerprint
                    case Token():
                        tokens[number * asked.n + event.choice].append(event)
                    case End():
                        reasons[number * asked.n + event.choice] = event.finish_reason
    finally:
        generation.close()
    form = form_for(asked.kind, wants_logprobs=asked.wants_logprobs)
    return {
        "id": asked.reply_id,
        "object": form.whole_object,
        "created": asked.created,
        "model": asked.model,
        "system_fingerprint": fingerprint,
        "choices": [form.whole(index, tokens[index], reasons[index]) for index in sorted(reasons)],
        "usage": generation.tally.usage(),
    }


async def first_events(generation: Generation, asked: Asked) -> list[Happened]:
    """Return the first events, when a backbone has queued or started the request, or after PATIENCE_S.

    Raises ApiError for a request that fails before any token, so that its reply has the right status.
    """
    happened = await generation.next(PATIENCE_S)
    for _, event in happened:
        if isinstance(event, Token):
            break
        if isinstance(event, Failed):
            raise from_failed(event, asked.prompt_field)
    return happened


class StreamWriter:
    """Writes events as the bytes of a stream."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._form = form_for(asked.kind, wants_logprobs=asked.wants_logprobs)
        self._head = self._write_head("")
        self._begun: set[int] = set()
        self.has_failed = False

    def write(self, happened: list[Happened]) -> bytes:
        """Return the bytes for these events. A failure ends them and sets `has_failed`."""
        parts: list[bytes] = []
        for number, event in happened:
            if isinstance(event, Failed):
                self.has_failed = True
                parts.append(error_event(from_failed(event, self._asked.prompt_field)))
                break
            parts += self._parts(number, event)
        return b"".join(parts)

    def end(self, tally: UsageTally) -> bytes:
        """Return the chunk with usage, if requested, and the stream's end."""
        if not self._asked.include_usage:
            return DONE
        return self._sse([], tally.usage()) + DONE

    def _parts(self, number: int, event: Any) -> Iterator[bytes]:
        match event:
            case Queued():
                yield f": {event.position} in line\n\n".encode()
            case Started():
                self._head = self._write_head(event.fingerprint)
            case Token():
                index = number * self._asked.n + event.choice
                yield from self._begin(index)
                delta = self._form.delta(index, event)
                if delta is not None:
                    yield self._sse([delta])
            case End():
                index = number * self._asked.n + event.choice
                yield from self._begin(index)
                yield self._sse([self._form.last(index, event.finish_reason)])

    def _begin(self, index: int) -> Iterator[bytes]:
        if index not in self._begun:
            self._begun.add(index)
            first = self._form.first(index)
            if first is not None:
                yield self._sse([first])

    def _sse(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        tail = f',"usage":{_to_json(usage)}}}' if self._asked.include_usage else "}"
        return f"{self._head}{_to_json(choices)}{tail}\n\n".encode()

    def _write_head(self, fingerprint: str) -> str:
        """Return the beginning of all chunks, encoded once since every token has a chunk."""
        head = {
            "id": self._asked.reply_id,
            "object": self._form.chunk_object,
            "created": self._asked.created,
            "model": self._asked.model,
            "system_fingerprint": fingerprint,
        }
        return f'data: {_to_json(head)[:-1]},"choices":'


async def stream_parts(
    generation: Generation, writer: StreamWriter, first: list[Happened]
) -> AsyncGenerator[bytes, None]:
    """Yield the stream's bytes. The last are [DONE], or an `error` event."""
    happened = first
    try:
        while True:
            yield writer.write(happened) or HEARTBEAT
            if writer.has_failed:
                return
            if not generation.n_unfinished:
                break
            happened = await generation.next(HEARTBEAT_S)
        yield writer.end(generation.tally)
    except Exception as error:  # the status is already sent, so only an event can report the error
        yield error_event(from_exception(error))
    finally:
        generation.close()


def error_event(error: ApiError) -> bytes:
    """Return OpenAI's error object as an `error` event."""
    return f"event: error\ndata: {_to_json(error.body)}\n\n".encode()
