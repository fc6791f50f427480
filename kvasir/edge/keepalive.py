"""When a silent edge is pinged and when it is given up: a pure decision over moments in seconds.

`edge` asks it at every look at the clock. A half-open connection is found within `interval_s + deadline_s` seconds
and one look.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """When a silent edge is asked for a sign of life, and how long it may take to give one."""

    interval_s: float = 3.0
    deadline_s: float = 5.0


class KeepAliveAction(Enum):
    """What a look at the clock asks for."""

    NOTHING = 0
    PING = 1
    GIVE_UP = 2


def keepalive_action(now: float, last_received: float, pinged: float, settings: KeepAlive) -> KeepAliveAction:
    """What to do about an edge that last received bytes at `last_received` and was last pinged at `pinged`."""
    if pinged > last_received:  # any byte since then is a sign of life, the pong or not
        return KeepAliveAction.GIVE_UP if now - pinged >= settings.deadline_s else KeepAliveAction.NOTHING
    return KeepAliveAction.PING if now - last_received >= settings.interval_s else KeepAliveAction.NOTHING
