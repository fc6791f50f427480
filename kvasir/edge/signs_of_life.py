"""When a WebSocket's other side counts as gone: pure, over moments that the caller reads from its clock.

Both ends of a relayed edge look at one of these once a second. Any byte that comes is a sign of life, and so is a
buffer that drains: a pong may have to wait behind megabytes on a slow line.
"""

from __future__ import annotations

from kvasir.edge.keepalive import KeepAlive, KeepAliveAction, keepalive_action

LOOK_EVERY_S = 1.0
# A side that is gone is found after at most interval, one look, deadline and another look: 10 s.
KEEP_ALIVE = KeepAlive(interval_s=3.0, deadline_s=5.0)


class SignsOfLife:
    """What was heard of the other side, and when it was last asked."""

    def __init__(self, now: float, settings: KeepAlive = KEEP_ALIVE) -> None:
        self._settings = settings
        self._pinged = now - 1.0
        self._n_unsent = 0
        self.heard = now

    def silent_s(self, now: float) -> float:
        """Seconds since the last sign."""
        return now - self.heard

    def look(self, now: float, n_unsent: int, is_listening: bool) -> KeepAliveAction:
        """What to do now. `n_unsent` bytes wait to leave; `is_listening` says whether this side reads at all."""
        if n_unsent < self._n_unsent or not is_listening:
            self.heard = now
        self._n_unsent = n_unsent
        action = keepalive_action(now, self.heard, self._pinged, self._settings)
        if action is KeepAliveAction.PING:
            self._pinged = now
        return action
