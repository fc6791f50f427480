"""One TCP stream that carries frames, for either end of an edge.

The backbone's TCP edges and the worker's connections own one each. It bounds what it buffers and never blocks the event
loop. What a frame asks for is its owner's concern.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol, cast

from kvasir.edge.states import LinkState
from kvasir.errors import EdgeError, WireError
from kvasir.wire.codec import FrameDecoder, encode
from kvasir.wire.frames import Frame
from kvasir.wire.header import MAX_PAYLOAD_BYTES, Buffer, Limits

JOINED_BYTES = 64 * 1024  # frames up to this size are sent as one piece
PIECE_BYTES = 256 * 1024  # the most bytes handed to the transport at once
LINGER_S = 1.0  # for the other side to read the last bytes and close
_DROPPED = memoryview(bytearray(4096))  # received bytes that nobody reads


class EdgeLink(Protocol):
    """Carries an edge's frames, and calls the methods of a LinkOwner."""

    @property
    def bytes_sent(self) -> int: ...

    @property
    def bytes_received(self) -> int: ...

    def send(self, frame: Frame, limits: Limits) -> None: ...

    def close(self, reason: str) -> None: ...


class LinkOwner(Protocol):
    """Receives a link's calls, on the event loop. None may block."""

    def frame_received(self, frame: Frame) -> None: ...

    def bytes_refused(self, error: WireError) -> None:
        """Bytes were not a frame: send the reason, if there is a frame for it, and close."""
        ...

    def bytes_went_out(self) -> None:
        """Queued bytes were given to the socket."""
        ...

    def link_closed(self, reason: str) -> None:
        """The link is closed. Called once."""
        ...


class TcpLink(asyncio.BufferedProtocol):
    """Frames over one TCP stream. This side accepts `limits`, and `max_payload_bytes` in frames of any kind."""

    def __init__(self, owner: LinkOwner, limits: Limits, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._owner = owner
        self._decoder = FrameDecoder(limits, max_payload_bytes)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._outgoing: deque[Buffer] = deque()
        self._is_write_paused = False
        self._state = LinkState.CONNECTING
        self._close_reason = ""
        self.is_reading_paused = False
        self.queued_bytes = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self.last_received = self._loop.time()
        self.last_sent = self._loop.time()
        self.frame_began: float | None = None  # the moment of the first byte of an incomplete frame

    @property
    def is_closing(self) -> bool:
        """Whether frames cannot be sent: the link is not open."""
        return self._state is not LinkState.OPEN

    @property
    def is_gone(self) -> bool:
        """Whether the stream has ended."""
        return self._state is LinkState.CLOSED

    def accept(self, limits: Limits) -> None:
        """Accept frames within these limits from now on."""
        self._decoder.limits = limits
        self._decoder.max_payload_bytes = MAX_PAYLOAD_BYTES

    def send(self, frame: Frame, limits: Limits) -> None:
        """Queue a frame, whose arrays must not change until it is sent. `limits` are the other side's.

        Raises EdgeError when the link is not open, WireError when the frame exceeds the limits.
        """
        if self.is_closing:
            raise EdgeError(f"edge is closed: {self._close_reason or 'not connected'}")
        for piece in _pieces(encode(frame, limits)):
            self._outgoing.append(piece)
            self.queued_bytes += len(piece)
        self._pump()

    def close(self, reason: str, linger_s: float = LINGER_S) -> None:
        """Send what is queued and close, after `linger_s` seconds at the latest. Nothing more is read."""
        if self.is_closing:
            return
        self._begin_close(reason)
        self.resume_reading()  # so that the other side's end of stream is seen
        self._loop.call_later(linger_s, self.abort, reason)
        self._pump()

    def abort(self, reason: str) -> None:
        """Close now; what is queued is lost."""
        self._begin_close(reason)
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Read nothing more from the socket, so that the other side has to wait."""
        if self._transport is not None and not self.is_reading_paused and not self.is_closing:
            self.is_reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        if self._transport is not None and self.is_reading_paused:
            self.is_reading_paused = False
            self.last_received = self._loop.time()
            if self.frame_began is not None:
                self.frame_began = self.last_received
            with contextlib.suppress(RuntimeError):  # the transport has begun to close by itself
                self._transport.resume_reading()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        raw = self._transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._state is LinkState.CLOSING:  # aborted before it was open
            self._transport.abort()
        else:
            self._enter(LinkState.OPEN)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory that the transport reads into; `sizehint` is not used."""
        del sizehint
        return self._decoder.writable() if self._is_reading else _DROPPED

    def buffer_updated(self, nbytes: int) -> None:
        self.last_received = self._loop.time()
        self.bytes_received += nbytes
        if not self._is_reading:
            return
        frames = self._decoder.advance(nbytes)
        if not self._decoder.is_mid_frame:
            self.frame_began = None
        elif frames or self.frame_began is None:
            self.frame_began = self.last_received
        for frame in frames:
            if not self.is_closing:  # the owner may have closed over an earlier frame
                self._owner.frame_received(frame)
        if self._decoder.failure is not None and not self.is_closing:
            self._owner.bytes_refused(self._decoder.failure)

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._pump()
        self._owner.bytes_went_out()

    def eof_received(self) -> bool:
        self._begin_close("the other side closed the edge")
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self._begin_close(f"connection lost: {exc}" if exc else "connection lost")
        self._enter(LinkState.CLOSED)
        self._transport = None
        self._outgoing.clear()
        self.queued_bytes = 0
        self._owner.link_closed(self._close_reason)

    @property
    def _is_reading(self) -> bool:
        return self._state is LinkState.OPEN and self._decoder.failure is None

    def _begin_close(self, reason: str) -> None:
        """Enter CLOSING for this reason, unless the link is closing already."""
        if self._state in (LinkState.CONNECTING, LinkState.OPEN):
            self._enter(LinkState.CLOSING)
            self._close_reason = reason

    def _enter(self, state: LinkState) -> None:
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        self._state = self._state.to(state, f"TCP link to {peer}")

    def _pump(self) -> None:
        while self._outgoing and not self._is_write_paused and self._transport is not None:
            piece = self._outgoing.popleft()
            self.queued_bytes -= len(piece)
            self.bytes_sent += len(piece)
            self.last_sent = self._loop.time()
            self._transport.write(piece)
        if self._state is LinkState.CLOSING and not self._outgoing:
            self._end_stream()

    def _end_stream(self) -> None:
        """Half-close the stream, so that the other side closes it: closing it now could lose the last frame."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()


def _pieces(buffers: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield the buffers in pieces of bounded size, and a small frame as one piece."""
    parts = list(buffers)
    if sum(map(len, parts)) <= JOINED_BYTES:
        yield b"".join(parts)
        return
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]
