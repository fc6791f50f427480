"""Which connection has taken too long: a pure decision over moments in seconds.

`serve` asks for every connection once a second. It closes what holds resources without using them; computing time is
never held against a backbone.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.worker.serving.config import Deadlines


@dataclass(frozen=True, slots=True)
class Moments:
    """What happened on a connection, and when."""

    opened: float
    is_welcome: bool
    last_received: float
    frame_began: float | None  # of a frame that is not complete
    last_sent: float
    has_unsent: bool
    owes: bool  # answers are being computed, or wait for their turn


def overdue(now: float, moments: Moments, deadlines: Deadlines) -> str | None:
    """Why the connection must end now, or None."""
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
