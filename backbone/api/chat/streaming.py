"""A streamed reply: server-sent events as the generations' events come, heartbeats between, an error as an event.

Called by `api` for requests with `stream.client`. What is ready is sent as one write. The generation is closed as soon
as the client is gone, even when the client went before the first byte.
"""

from __future__ import annotations

import json
import weakref
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
PATIENCE_S = 15.0  # until the headers: longer than it takes to find that no backbone is there
DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": heartbeat\n\n"
_to_json = json.JSONEncoder(separators=(",", ":")).encode


class EventStream(StreamingHttpResponse):
    """The HTTP reply of a stream; when it is closed or forgotten, its generation is closed."""

    def __init__(self, parts: AsyncGenerator[bytes, None], generation: Generation) -> None:
        super().__init__(parts, content_type="text/event-stream; charset=utf-8")
        self["Cache-Control"] = "no-cache, no-transform"
        self["X-Accel-Buffering"] = "no"
        self._let_go = weakref.finalize(self, generation.close_soon)
        self._let_go.atexit = False

    def close(self) -> None:
        """Called by Django at the end, on another thread."""
        self._let_go()
        super().close()


async def first_events(generation: Generation, asked: Asked) -> list[Happened]:
    """What came first, so that a request that fails before any token gets a real status. Raises ApiError.

    Returns when the request is on its way (or in line) at a backbone, or after PATIENCE_S.
    """
    happened = await generation.next(PATIENCE_S)
    for _, event in happened:
        if isinstance(event, Token):
            break
        if isinstance(event, Failed):
            raise from_failed(event, asked.prompt_field)
    return happened


class StreamWriter:
    """Turns events into the bytes of a stream."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._form = form_for(asked.kind, wants_logprobs=asked.wants_logprobs)
        self._head = self._write_head("")
        self._begun: set[int] = set()
        self.has_failed = False

    def write(self, happened: list[Happened]) -> bytes:
        """The bytes for these events; a failure is the last of them and sets `has_failed`."""
        parts: list[bytes] = []
        for number, event in happened:
            if isinstance(event, Failed):
                self.has_failed = True
                parts.append(error_event(from_failed(event, self._asked.prompt_field)))
                break
            parts += self._parts(number, event)
        return b"".join(parts)

    def end(self, tally: UsageTally) -> bytes:
        """The chunk with usage, where it was asked for, and the end's mark."""
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
        """What all chunks of a reply begin with; written once, for there is one chunk for each token."""
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
    """The stream's bytes. Ends with [DONE], or with an `error` event and nothing after it."""
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
    except Exception as error:  # the headers are gone: only an event can still tell the client
        yield error_event(from_exception(error))
    finally:
        generation.close()


def error_event(error: ApiError) -> bytes:
    """OpenAI's error object as a typed event."""
    return f"event: error\ndata: {_to_json(error.body)}\n\n".encode()
