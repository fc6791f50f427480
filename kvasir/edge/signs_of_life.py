"""When a silent edge or socket is pinged, and when it is given up: pure rules over moments in seconds.

TCP edges and both ends of a relay's sockets apply them at every look at the clock. Any byte that arrives is a sign of
life. A half-open connection is found within `interval_s + deadline_s` seconds and two looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """After how many seconds of silence to ping, and how long to wait for any byte after that."""

    interval_s: float = 3.0
    deadline_s: float = 5.0


KEEP_ALIVE = KeepAlive()  # of sockets: a side that is gone is found after 10 s at most


class KeepAliveAction(Enum):
    """The result of one look at the clock."""

    NOTHING = 0
    PING = 1
    GIVE_UP = 2


def keepalive_action(now: float, last_received: float, pinged: float, settings: KeepAlive) -> KeepAliveAction:
    """Return what to do about an edge that last received bytes at `last_received` and was last pinged at `pinged`."""
    if pinged > last_received:  # any byte since then is a sign of life, the pong or not
        return KeepAliveAction.GIVE_UP if now - pinged >= settings.deadline_s else KeepAliveAction.NOTHING
    return KeepAliveAction.PING if now - last_received >= settings.interval_s else KeepAliveAction.NOTHING


class SignsOfLife:
    """When the other side was last heard and last pinged.

    A send buffer that drains is a sign of life too: on a slow line a pong may wait behind megabytes.
    """

    def __init__(self, now: float, settings: KeepAlive = KEEP_ALIVE) -> None:
        self._settings = settings
        self._pinged = now - 1.0
        self._n_unsent = 0
        self.heard = now

    def silent_s(self, now: float) -> float:
        """Return the seconds since the last sign of life."""
        return now - self.heard

    def look(self, now: float, n_unsent: int, is_listening: bool) -> KeepAliveAction:
        """Return what to do now. `n_unsent` bytes wait to be sent; `is_listening`: this side reads from the socket."""
        if n_unsent < self._n_unsent or not is_listening:
            self.heard = now
        self._n_unsent = n_unsent
        action = keepalive_action(now, self.heard, self._pinged, self._settings)
        if action is KeepAliveAction.PING:
            self._pinged = now
        return action
