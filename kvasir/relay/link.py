"""The link of one relayed edge: the counterpart of `TcpLink` in `edge.link`.

`relay.socket` makes one for each edge; backbones' edges and workers' connections own them. Links share the socket's
stream, so a link cannot make the other side wait by not reading: the relay's credit bounds the bytes under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from kvasir.edge.link import LinkOwner
from kvasir.edge.states import LinkState
from kvasir.errors import EdgeError, WireError
from kvasir.relay.records import RECORD_BYTES
from kvasir.wire.codec import decode, encode
from kvasir.wire.frames import Fault, FaultCode, Frame, Refuse, clipped
from kvasir.wire.header import PROTOCOL_LIMITS, Buffer, Limits


class Carrier(Protocol):
    """The socket that carries a link's records."""

    def post(self, link: RelayLink, buffers: list[Buffer], n_bytes: int) -> None:
        """Queue one frame."""
        ...

    def forget(self, link: RelayLink) -> None:
        """Drop what still arrives for a closed edge."""
        ...


class RelayLink:
    """Frames of one edge. The socket's `on_edge` sets the `owner`."""

    def __init__(self, number: int, carrier: Carrier, clock: Callable[[], float]) -> None:
        self.number = number
        self.owner: LinkOwner | None = None
        self.limits = PROTOCOL_LIMITS
        self.queued_bytes = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self.last_received = self.last_sent = clock()
        self.frame_began: float | None = None  # always: frames arrive whole
        self.is_reading_paused = False
        self._carrier = carrier
        self._clock = clock
        self._state = LinkState.OPEN
        self._close_reason = ""

    @property
    def is_closing(self) -> bool:
        """Whether the edge is closed."""
        return self._state is LinkState.CLOSED

    is_gone = is_closing  # it has no stream of its own that could still be open

    def accept(self, limits: Limits) -> None:
        """Accept frames within these limits from now on."""
        self.limits = limits

    def send(self, frame: Frame, limits: Limits) -> None:
        """Queue a frame, whose arrays must not change until it is sent. `limits` are the other side's.

        Raises EdgeError when the edge is closed, WireError when the frame exceeds the limits.
        """
        if self.is_closing:
            raise EdgeError(f"edge is closed: {self._close_reason}")
        self._post(frame, limits)

    def close(self, reason: str) -> None:
        """Close; send the reason first, unless the last frame of this edge has been sent."""
        if self._state is LinkState.OPEN:
            self._post(Fault(0, FaultCode.PROTOCOL, clipped(reason)), PROTOCOL_LIMITS)
        self._close(reason)

    def abort(self, reason: str) -> None:
        """Close now."""
        self.close(reason)

    def pause_reading(self) -> None:
        """Note that the owner takes no more; the relay's credit holds back the rest."""
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        """Note that the owner takes more frames."""
        self.is_reading_paused = False

    # Called by the socket

    def take(self, data: memoryview) -> None:
        """Decode one frame and hand it to the owner."""
        self.last_received = self._clock()
        self.bytes_received += RECORD_BYTES + len(data)
        if self.owner is None or self.is_closing:
            return
        try:
            frame = decode(data, self.limits)
        except WireError as error:
            self.owner.bytes_refused(error)
            return
        if isinstance(frame, Fault) and frame.request == 0:  # from the other side or the relay
            self._close(f"the edge ended ({frame.code.name}): {frame.message}")
        else:
            self.owner.frame_received(frame)

    def sent(self, n_bytes: int) -> None:
        """Count bytes that were sent."""
        self.queued_bytes -= n_bytes
        self.bytes_sent += n_bytes
        self.last_sent = self._clock()
        if self.owner is not None:
            self.owner.bytes_went_out()

    def lost(self, reason: str) -> None:
        """Close without a frame: the socket is gone."""
        self._close(reason)

    def _post(self, frame: Frame, limits: Limits) -> None:
        buffers = encode(frame, limits)
        n_bytes = RECORD_BYTES + sum(map(len, buffers))
        self.queued_bytes += n_bytes
        is_last = isinstance(frame, Refuse) or (isinstance(frame, Fault) and not frame.request)
        if is_last and self._state is LinkState.OPEN:
            self._enter(LinkState.CLOSING)
        self._carrier.post(self, buffers, n_bytes)

    def _close(self, reason: str) -> None:
        if self.is_closing:
            return
        self._enter(LinkState.CLOSED)
        self._close_reason = reason
        self._carrier.forget(self)
        if self.owner is not None:
            # later: the owner may be in the middle of a call to this link
            asyncio.get_running_loop().call_soon(self.owner.link_closed, reason)

    def _enter(self, state: LinkState) -> None:
        self._state = self._state.to(state, f"link of edge {self.number}")
