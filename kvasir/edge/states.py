"""The states of an edge, of the link under it and of a relay session, and which may follow which.

Both ends of an edge, the links and the relay keep their state in these. A state changes through `to` alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum
from typing import Self

log = logging.getLogger(__name__)


class State(Enum):
    """A state of something that opens once and closes once."""

    def to(self, state: Self, name: str) -> Self:
        """Return `state`, the next one of what `name` names, and log the transition.

        Raises RuntimeError when `state` may not follow this one.
        """
        if state not in FOLLOWERS[self]:
            raise RuntimeError(f"{name} cannot go from {self.name} to {state.name}")
        log.debug("%s: %s -> %s", name, self.name, state.name)
        return state


class EdgeState(State):
    """One end of an edge, or a whole edge as the relay sees it."""

    HANDSHAKE = "handshake"  # no welcome yet
    OPEN = "open"
    GOING_AWAY = "going away"  # half-open: the worker takes no new dispatch, and answers those in flight
    CLOSING = "closing"  # half-open: this side takes nothing more, its last frames may still leave
    CLOSED = "closed"


class LinkState(State):
    """What carries the frames of one end of an edge."""

    CONNECTING = "connecting"
    OPEN = "open"
    CLOSING = "closing"  # half-open: one side has sent its last frame, the stream has not ended
    CLOSED = "closed"


class SessionState(State):
    """A node's socket at a relay, as either of them sees it."""

    CONNECTING = "connecting"  # the hello has not been accepted
    JOINED = "joined"
    GOING_AWAY = "going away"  # half-open: the relay is about to stop, what is under way is still answered
    PARTING = "parting"  # half-open: this side takes nothing more, what it has queued still leaves
    CLOSED = "closed"


FOLLOWERS: Mapping[State, frozenset[State]] = {
    EdgeState.HANDSHAKE: frozenset({EdgeState.OPEN, EdgeState.CLOSING, EdgeState.CLOSED}),
    EdgeState.OPEN: frozenset({EdgeState.GOING_AWAY, EdgeState.CLOSING, EdgeState.CLOSED}),
    EdgeState.GOING_AWAY: frozenset({EdgeState.CLOSING, EdgeState.CLOSED}),
    EdgeState.CLOSING: frozenset({EdgeState.CLOSED}),
    EdgeState.CLOSED: frozenset(),
    LinkState.CONNECTING: frozenset({LinkState.OPEN, LinkState.CLOSING, LinkState.CLOSED}),
    LinkState.OPEN: frozenset({LinkState.CLOSING, LinkState.CLOSED}),
    LinkState.CLOSING: frozenset({LinkState.CLOSED}),
    LinkState.CLOSED: frozenset(),
    SessionState.CONNECTING: frozenset({SessionState.JOINED, SessionState.CLOSED}),
    SessionState.JOINED: frozenset({SessionState.GOING_AWAY, SessionState.PARTING, SessionState.CLOSED}),
    SessionState.GOING_AWAY: frozenset({SessionState.PARTING, SessionState.CLOSED}),
    SessionState.PARTING: frozenset({SessionState.CLOSED}),
    SessionState.CLOSED: frozenset(),
}
