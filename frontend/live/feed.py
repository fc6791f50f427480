"""Builds snapshots while anybody watches, at most one a second, and sends each to all watchers of the site.

`live.consumer` joins and leaves; `views_live` asks for single ones. With a channel layer in Redis all web processes
share one feed, and one of them builds; with the layer in memory each builds its own. Without watchers nothing is built.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
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
    """What SQL said of some nodes, and until when that is believed."""

    states: dict[str, SavedTrust]
    node_ids: frozenset[str]
    until: float


class LiveFeed:
    """One a process. Use it from one event loop."""

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
        """Sockets that watch now, in this process."""
        return self._n_watchers

    @property
    def is_building(self) -> bool:
        """Whether snapshots are being made."""
        return self._task is not None

    def join(self) -> bool:
        """One more watches. False, and nothing is counted, when there are as many as may be."""
        if self._n_watchers >= self.most_watchers:
            return False
        self._n_watchers += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="kvasir-live")
        return True

    def leave(self) -> None:
        """One less watches; the last one ends the building."""
        self._n_watchers -= 1
        if self._n_watchers == 0 and self._task is not None:
            self._task.cancel()
            self._task = None

    def fresh(self) -> bytes | None:
        """The last snapshot, unless it is older than what is sent next."""
        if self._last is None or self._clock() - self._last[0] >= PERIOD_S:
            return None
        return self._last[1]

    async def snapshot(self) -> bytes:
        """The last snapshot when it is fresh, else a new one; several who ask share it. Raises Redis's errors."""
        return self.fresh() or await self._next()

    async def _next(self) -> bytes:
        """A new one, or the one that is being built."""
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
            except Exception as error:  # the loop's top: watchers see that data is old, and the next turn may do better
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
    """Whether this process sends the next snapshot. Where processes share the watchers, one of them does."""
    if not settings.LIVE_IS_SHARED:
        return True
    market = service()
    take: Callable[[], object] = lambda: market.client.set(TURN_KEY, "1", nx=True, px=round(900 * PERIOD_S))  # noqa: E731
    turn: Awaitable[object] = market.call(take)
    return bool(await turn)


_feeds: list[LiveFeed] = []


def feed() -> LiveFeed:
    """This process's feed."""
    if not _feeds:
        _feeds.append(LiveFeed(settings.KVASIR_LIVE_SOCKETS))
    return _feeds[-1]
