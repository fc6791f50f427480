"""The states of an edge, of the link under it and of a relay session, and which may follow which.

Both ends of an edge, the links and the relay keep their state in these. A state changes through `to` alone.
"""

from __future__ import annotations

import logging
from enum import Enum, unique
from typing import Self

log = logging.getLogger(__name__)


class State(Enum):
    """A state of something that opens once and closes once. Its value names the states that may follow."""

    def to(self, state: Self, owner: str) -> Self:
        """Return `state`, the next one of `owner`, and log the transition. Raises RuntimeError if it may not follow."""
        if state.name not in self.value:
            raise RuntimeError(f"{owner} cannot go from {self.name} to {state.name}")
        log.debug("%s: %s -> %s", owner, self.name, state.name)
        return state


@unique
class EdgeState(State):
    """One end of an edge, or a whole edge as the relay sees it."""

    HANDSHAKE = ("OPEN", "CLOSING", "CLOSED")  # no welcome yet
    OPEN = ("GOING_AWAY", "CLOSING", "CLOSED")
    GOING_AWAY = ("CLOSING", "CLOSED")  # half-open: the worker answers what is in flight and takes nothing new
    CLOSING = ("CLOSED",)  # half-open: this side takes nothing more, its last frames may still be on their way
    CLOSED = ()


@unique
class LinkState(State):
    """What carries the frames of one end of an edge."""

    CONNECTING = ("OPEN", "CLOSING", "CLOSED")
    OPEN = ("CLOSING", "CLOSED")
    CLOSING = ("CLOSED",)  # half-open: one side has sent its last frame, the stream has not ended
    CLOSED = ()


@unique
class SessionState(State):
    """A node's socket at a relay, as either of them sees it."""

    CONNECTING = ("JOINED", "CLOSED")  # the hello has not been accepted
    JOINED = ("GOING_AWAY", "PARTING", "CLOSED")
    GOING_AWAY = ("PARTING", "CLOSED")  # half-open: the relay is about to stop, what is under way is still answered
    PARTING = ("CLOSED",)  # half-open: this side takes nothing more, what it has queued is still sent
    CLOSED = ()
