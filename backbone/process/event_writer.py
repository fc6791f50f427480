"""Writes events to Redis from one thread: all that are queued in one write, at most one write for each engine step.

The engine's thread and the tasks put events and never wait. This side chooses the entry ids, which are consecutive: a
repeated write cannot double an event, and a reader notices a missing one.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from redis import Redis
from redis.exceptions import RedisError

from backbone.stream.events import Event, Failed, event_to_json, is_last
from backbone.stream.keys import EVENT_FIELD, KEEP_S, MAX_EVENTS, entry_id, stream_key

logger = logging.getLogger(__name__)

Events = list[tuple[str, Event]]
# One command and one reply for all events of a step: one XADD for each would cost this process ten times the CPU.
# An entry whose id exists was written by an earlier try.
_APPEND = f"""
for i = 1, #KEYS do
  local at = 3 * i - 1
  local reply = redis.pcall('XADD', KEYS[i], 'MAXLEN', '~', ARGV[1], ARGV[at], '{EVENT_FIELD}', ARGV[at + 1])
  if type(reply) == 'table' and reply.err and not string.find(reply.err, 'equal or smaller', 1, true) then
    return reply
  end
  if ARGV[at + 2] ~= '0' then redis.call('EXPIRE', KEYS[i], ARGV[at + 2]) end
end
return #KEYS
"""
_RETRY_AFTER_S = (0.05, 0.2, 0.5)
_MAX_MERGED = 2048
_LOST = Failed(503, "redis_lost", "the message store lost this request's tokens; send the request again")


@dataclass(slots=True)
class OpenStream:
    """A request's stream while this process writes it. `finished` is set when its last event is written or lost."""

    request_id: str
    expires_s: int
    finished: threading.Event = field(default_factory=threading.Event)
    n_written: int = 0
    is_lost: bool = False  # an event is missing: only a failure may follow


_Entry = tuple[OpenStream, int, Event]


class EventWriter:
    """Writes the open streams. `on_lost` is called, on any thread, when events cannot be delivered."""

    def __init__(
        self,
        client: Redis,
        on_lost: Callable[[str], None],
        *,
        before_ends: Callable[[Events], None] = lambda ends: None,
        max_batches: int = 1024,
    ) -> None:
        """`before_ends` receives last events before a reader can see them; it must not raise."""
        self._script = client.register_script(_APPEND)
        self._on_lost = on_lost
        self._before_ends = before_ends
        self._queue: queue.Queue[Events | None] = queue.Queue(max_batches)
        self._streams: dict[str, OpenStream] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvasir-events", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    @property
    def request_ids(self) -> list[str]:
        """Return the requests with an open stream."""
        return list(self._streams)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, deadline_s: float) -> None:
        """Write the queued events, then stop the thread."""
        self._stopping.set()
        try:
            self._queue.put(None, timeout=deadline_s)
        except queue.Full:
            logger.error("events were not written: the message store did not accept them in time")
        self._thread.join(deadline_s)

    def open(self, request_id: str, deadline_s: float) -> OpenStream:
        """Open a stream. Its entries expire KEEP_S after the deadline even if this process dies."""
        stream = OpenStream(request_id, int(deadline_s) + KEEP_S)
        self._streams[request_id] = stream
        return stream

    def close(self, stream: OpenStream) -> None:
        """Forget a stream at the end of its task."""
        self._streams.pop(stream.request_id, None)

    def put(self, events: Events) -> None:
        """Queue events in order, without waiting. If the queue is full, all requests are lost."""
        try:
            self._queue.put_nowait(events)
        except queue.Full:
            self._lose(events, "the message store is too slow for the generated tokens")

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
            except Exception:  # the thread must go on: only it finishes the tasks
                logger.exception("events could not be written")
                self._lose(events, "events could not be written")
            if ended:
                return

    def _merge(self, events: Events) -> bool:
        """Add further queued events; return True at the end of the queue."""
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
        ends = [(stream.request_id, event) for stream, _, event in entries if is_last(event)]
        if ends:
            self._before_ends(ends)
        if entries:
            self._append(*_arguments(entries))
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

    def _append(self, stream_keys: list[str], arguments: list[str | int]) -> None:
        """Run the script. A write that may have failed is repeated, which its ids make harmless."""
        for wait_s in _RETRY_AFTER_S:
            try:
                self._script(stream_keys, arguments)
            except RedisError as error:
                logger.warning("events were not written, trying again: %s", error)
                self._stopping.wait(wait_s)
            else:
                return
        self._script(stream_keys, arguments)

    def _lose(self, events: Events, reason: str) -> None:
        for request_id, event in events:
            stream = self._streams.get(request_id)
            if stream is not None:
                stream.is_lost = True
                if is_last(event):
                    stream.finished.set()
        self._on_lost(reason)


def _arguments(entries: list[_Entry]) -> tuple[list[str], list[str | int]]:
    """Return the script's keys, and MAX_EVENTS with three arguments for each key: entry id, event, expiry in s or 0."""
    stream_keys: list[str] = []
    arguments: list[str | int] = [MAX_EVENTS]
    for stream, number, event in entries:
        expires_s = KEEP_S if is_last(event) else stream.expires_s if number == 1 else 0
        stream_keys.append(stream_key(stream.request_id))
        arguments += (entry_id(number), event_to_json(event), expires_s)
    return stream_keys, arguments
