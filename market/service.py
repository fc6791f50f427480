"""The market of this process, made from Django's settings at first use: Redis, the model, limits, threads.

`service()` returns it; tests replace it with `using`. Importing this module opens nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from threading import Lock
from typing import TypeVar

from django.conf import settings
from redis import BlockingConnectionPool, Redis

from market.coverage.model_facts import ModelFacts, site_model
from market.coverage.participation import Participation
from market.coverage.store import Clock, unix_ms
from market.errors import MarketError
from market.ledger.quotes import record_quote
from market.ledger.rewards import Quote
from market.nodes.access import TokenMemory
from market.rate_limits import RateLimits
from market.settings import MarketSettings

N_THREADS = 16
ANSWER_DEADLINE_S = 10.0
_REDIS_TIMEOUT_S = 3.0
T = TypeVar("T")


class MarketService:
    """Everything that the routes need. `facts` is called once, when a model is first needed, and may block.

    `on_quote` is called with a node's id and the quote of its lease before the node receives the lease, on a thread
    that may use SQL. When it raises, the node receives the error, and the lease expires unused.
    """

    def __init__(
        self,
        client: Redis,
        settings: MarketSettings,
        facts: Callable[[], ModelFacts],
        clock: Clock = unix_ms,
        on_quote: Callable[[str, Quote], None] | None = None,
    ) -> None:
        self.settings = settings
        self.client = client
        self.clock = clock
        self.on_quote = on_quote
        self.memory = TokenMemory()
        self.limits = RateLimits(client)
        self._facts = facts
        self._lock = Lock()
        self._participation: Participation | None = None

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(N_THREADS, thread_name_prefix="market")

    def participation(self) -> Participation:
        """Return the market of the site's model. Raises MarketError 503 when the model cannot be read."""
        with self._lock:
            if self._participation is None:
                self._participation = Participation(self.client, self._facts(), self.settings, self.clock)
            return self._participation

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function that blocks on Redis on a thread of the market. Raises MarketError 503 at the deadline."""
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                return await asyncio.get_running_loop().run_in_executor(self._pool, function)
        except TimeoutError:
            raise MarketError(503, "market_slow", "the market did not answer in time", retry_after_s=5) from None

    def close(self) -> None:
        """Stop the threads and close the connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.client.close()


def redis_client(url: str) -> Redis:
    """Return a client whose calls fail within seconds when Redis does not answer."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=2 * N_THREADS,
        timeout=_REDIS_TIMEOUT_S,
        socket_timeout=_REDIS_TIMEOUT_S,
        socket_connect_timeout=_REDIS_TIMEOUT_S,
    )
    return Redis(connection_pool=pool)


_current: list[MarketService] = []
_making = Lock()


def service() -> MarketService:
    """Return the market of this process."""
    with _making:
        if not _current:
            client = redis_client(settings.CELERY_BROKER_URL)
            _current.append(
                MarketService(client, MarketSettings.from_django(), lambda: site_model().facts, on_quote=record_quote)
            )
        return _current[-1]


@contextmanager
def using(other: MarketService) -> Iterator[None]:
    """Use another market until the context ends, for tests and benchmarks."""
    _current.append(other)
    try:
        yield
    finally:
        _current.remove(other)
        other.close()
