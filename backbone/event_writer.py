"""Events to Redis: one thread, one pipeline for everything that is there, which is at most one for each engine step.

The engine's thread and the tasks put events and never wait. Entry ids are consecutive numbers that this side chooses,
so that a write which is tried again cannot double an event, and a reader sees it when one is missing.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from backbone.events import Event, Failed, event_to_json, is_last
from backbone.stream_keys import EVENT_FIELD, KEEP_S, MAX_EVENTS, entry_id, stream_key

logger = logging.getLogger(__name__)

Events = list[tuple[str, Event]]
_RETRY_AFTER_S = (0.05, 0.2, 0.5)
_MAX_MERGED = 2048
_LOST = Failed(503, "redis_lost", "the message store could not take this request's tokens; send it again")


@dataclass(slots=True)
class OpenStream:
    """One request's stream while this process writes it. `finished` is set when its last event is written, or lost."""

    request_id: str
    expires_s: int
    finished: threading.Event = field(default_factory=threading.Event)
    n_written: int = 0
    is_lost: bool = False  # an event is missing: nothing but a failure may follow


_Entry = tuple[OpenStream, int, Event]


class EventWriter:
    """Writes the streams that were opened here. `on_lost` is told, on some thread, when tokens cannot be delivered."""

    def __init__(self, client: Redis, on_lost: Callable[[str], None], *, max_batches: int = 1024) -> None:
        self._client = client
        self._on_lost = on_lost
        self._queue: queue.Queue[Events | None] = queue.Queue(max_batches)
        self._streams: dict[str, OpenStream] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvasir-events", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def request_ids(self) -> list[str]:
        """Requests whose streams are open."""
        return list(self._streams)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, deadline_s: float) -> None:
        """Write what is there, then end the thread."""
        self._stopping.set()
        try:
            self._queue.put(None, timeout=deadline_s)
        except queue.Full:
            logger.error("events were left unwritten: the message store did not take them in time")
        self._thread.join(deadline_s)

    def open(self, request_id: str, deadline_s: float) -> OpenStream:
        """Begin a stream; its entries expire some time after the deadline even if this process dies."""
        stream = OpenStream(request_id, int(deadline_s) + KEEP_S)
        self._streams[request_id] = stream
        return stream

    def close(self, stream: OpenStream) -> None:
        """The task is over."""
        self._streams.pop(stream.request_id, None)

    def put(self, events: Events) -> None:
        """Take events in order, without waiting. When the queue is full, all requests are lost."""
        try:
            self._queue.put_nowait(events)
        except queue.Full:
            self._lose(events, "the message store is too slow for the tokens that are made")

    def _run(self) -> None:
        while True:
            events = self._queue.get()
            if events is None:
                return
            ended = self._merge(events)
            try:
                self._write(events)
            except RedisError as error:
                self._lose(events, f"the message store cannot be reached: {error}")
            except Exception:  # the thread must live on: nobody else finishes the tasks
                logger.exception("events could not be written")
                self._lose(events, "events could not be written")
            if ended:
                return

    def _merge(self, events: Events) -> bool:
        """Add what has piled up; True when the end of the queue was found."""
        while len(events) < _MAX_MERGED:
            try:
                more = self._queue.get_nowait()
            except queue.Empty:
                return False
            if more is None:
                return True
            events.extend(more)
        return False

    def _write(self, events: Events) -> None:
        entries = [entry for entry in map(self._numbered, events) if entry is not None]
        for reply in self._executed(entries):
            if isinstance(reply, ResponseError) and "equal or smaller" not in str(reply):
                raise reply
        for stream, _, event in entries:
            if is_last(event):
                stream.finished.set()

    def _numbered(self, event: tuple[str, Event]) -> _Entry | None:
        stream = self._streams.get(event[0])
        if stream is None or stream.finished.is_set():
            return None
        what = event[1]
        if stream.is_lost and not isinstance(what, Failed):
            if not is_last(what):
                return None
            what = _LOST
        stream.n_written += 1
        return stream, stream.n_written, what

    def _executed(self, entries: list[_Entry]) -> list[Any]:
        """The replies; a write that may not have arrived is repeated, its ids make that harmless."""
        for wait_s in _RETRY_AFTER_S:
            try:
                return self._pipelined(entries)
            except RedisError as error:
                logger.warning("events were not written, trying again: %s", error)
                self._stopping.wait(wait_s)
        return self._pipelined(entries)

    def _pipelined(self, entries: list[_Entry]) -> list[Any]:
        commands = self._client.pipeline(transaction=False)
        for stream, number, event in entries:
            key = stream_key(stream.request_id)
            fields: Any = {EVENT_FIELD: event_to_json(event)}
            commands.xadd(key, fields, id=entry_id(number), maxlen=MAX_EVENTS)
            if number == 1 or is_last(event):
                commands.expire(key, KEEP_S if is_last(event) else stream.expires_s)
        replies: list[Any] = commands.execute(raise_on_error=False)
        return replies

    def _lose(self, events: Events, reason: str) -> None:
        for request_id, event in events:
            stream = self._streams.get(request_id)
            if stream is not None:
                stream.is_lost = True
                if is_last(event):
                    stream.finished.set()
        self._on_lost(reason)
