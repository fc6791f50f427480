"""The deadlines of a connection: a pure decision over moments in seconds.

`serve` checks every connection once a second and closes those that hold resources without using them. Computing time
never counts against a backbone.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.worker.serving.config import Deadlines


@dataclass(frozen=True, slots=True)
class Moments:
    """The state of a connection and the moments of its last events."""

    opened: float
    is_welcome: bool
    last_received: float
    frame_began: float | None  # of an incomplete frame
    last_sent: float
    has_unsent: bool
    owes: bool  # requests are being computed or queued


def overdue(now: float, moments: Moments, deadlines: Deadlines) -> str | None:
    """Return why the connection must end now, or None."""
    if not moments.is_welcome:
        if now - moments.opened >= deadlines.hello_s:
            return f"no hello within {deadlines.hello_s:g} s"
        return None
    if moments.has_unsent and now - moments.last_sent >= deadlines.write_s:
        return f"answers were not read for {deadlines.write_s:g} s"
    if moments.frame_began is not None and now - moments.frame_began >= deadlines.frame_s:
        return f"a frame was not complete within {deadlines.frame_s:g} s"
    if not moments.owes and not moments.has_unsent and now - moments.last_received >= deadlines.idle_s:
        return f"nothing received for {deadlines.idle_s:g} s"
    return None
