"""The feed of snapshots: built while there are watchers, at most one a second, and sent to all watchers of the site.

`frontend.live.consumer` joins and leaves; `frontend.views` gets single snapshots. With a channel layer in Redis one of
the web processes builds for all; with the layer in memory each process builds its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from django.conf import settings

from frontend.live.readings import Readings, read_swarm
from frontend.live.snapshot import packed, problem_json, snapshot_json
from market.errors import MarketError
from market.nodes.trust_store import SavedTrust, trust_of
from market.service import MarketService, service

GROUP = "live"
MESSAGE = "live.snapshot"
PERIOD_S = 1.0
TRUST_KEPT_S = 5.0
TURN_KEY = "live:turn"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _KnownTrust:
    """The standing of some nodes as read from SQL, used until `until`."""

    states: dict[str, SavedTrust]
    node_ids: frozenset[str]
    until: float


class LiveFeed:
    """The feed of one process. Use it from one event loop."""

    def __init__(self, most_watchers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most_watchers = most_watchers
        self._clock = clock
        self._n_watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._last: tuple[float, bytes] | None = None
        self._building: asyncio.Task[bytes] | None = None
        self._trust = _KnownTrust({}, frozenset(), 0.0)

    @property
    def n_watchers(self) -> int:
        """The number of this process's watchers."""
        return self._n_watchers

    @property
    def is_building(self) -> bool:
        """Whether snapshots are built."""
        return self._task is not None

    def join(self) -> bool:
        """Count one more watcher. Returns False, without counting it, at the limit."""
        if self._n_watchers >= self.most_watchers:
            return False
        self._n_watchers += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="kvasir-live")
        return True

    def leave(self) -> None:
        """Count one watcher less; the last one ends the building of snapshots."""
        self._n_watchers -= 1
        if self._n_watchers == 0 and self._task is not None:
            self._task.cancel()
            self._task = None

    def fresh(self) -> bytes | None:
        """Return the last snapshot, or None when it is older than PERIOD_S."""
        if self._last is None or self._clock() - self._last[0] >= PERIOD_S:
            return None
        return self._last[1]

    async def snapshot(self) -> bytes:
        """Return the last snapshot if it is fresh, else a new one, shared by all callers. Raises Redis's errors."""
        return self.fresh() or await self._next()

    async def _next(self) -> bytes:
        """Return the snapshot that is being built; start one if there is none."""
        if self._building is None or self._building.done():
            self._building = asyncio.get_running_loop().create_task(self._build())
        return await asyncio.shield(self._building)

    async def _run(self) -> None:
        problem = ""
        while True:
            began = self._clock()
            try:
                if await _take_turn():
                    await get_channel_layer().group_send(GROUP, {"type": MESSAGE, "data": await self._next()})
                problem = ""
            except Exception as error:  # top of the loop: pages show that data is old, and the next turn may succeed
                words = f"{type(error).__name__}: {error}"
                if words != problem:
                    logger.warning("the dashboard gets no snapshot: %s", words)
                problem = words
            await asyncio.sleep(max(0.0, began + PERIOD_S - self._clock()))

    async def _build(self) -> bytes:
        market = service()
        try:
            readings = await market.call(lambda: read_swarm(market))
        except MarketError as error:
            found = packed(problem_json(market.clock(), error))
        else:
            found = await self._packed(market, readings)
        self._last = (self._clock(), found)
        return found

    async def _packed(self, market: MarketService, readings: Readings) -> bytes:
        trust = await self._trust_of(readings.node_ids)
        return await market.call(lambda: packed(snapshot_json(readings, trust)))

    async def _trust_of(self, node_ids: tuple[str, ...]) -> dict[str, SavedTrust]:
        wanted, now = frozenset(node_ids), self._clock()
        if now >= self._trust.until or not wanted <= self._trust.node_ids:
            states = await sync_to_async(trust_of)(wanted)
            self._trust = _KnownTrust(states, wanted, now + TRUST_KEPT_S)
        return self._trust.states


async def _take_turn() -> bool:
    """Return whether this process sends the next snapshot: one does where processes share the watchers."""
    if not settings.LIVE_IS_SHARED:
        return True
    market = service()
    return await market.call(lambda: bool(market.client.set(TURN_KEY, "1", nx=True, px=round(900 * PERIOD_S))))


_feeds: list[LiveFeed] = []


def feed() -> LiveFeed:
    """Return the feed of this process."""
    if not _feeds:
        _feeds.append(LiveFeed(settings.KVASIR_LIVE_SOCKETS))
    return _feeds[-1]
