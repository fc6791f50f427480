"""Puts an agent together from its configuration and lets it work. `__main__` calls it for the form with a budget."""

from __future__ import annotations

import asyncio
import platform
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import httpx

from kvasir import __version__
from kvasir.worker.agent.agent import Agent
from kvasir.worker.agent.config import AgentConfig
from kvasir.worker.agent.edge import AgentEdge, edge_config
from kvasir.worker.agent.fetch import Fetcher
from kvasir.worker.agent.market_client import MarketClient
from kvasir.worker.agent.node_credentials import given_credentials
from kvasir.worker.agent.options import AgentOptions, Surroundings
from kvasir.worker.agent.report import report_for
from kvasir.worker.agent.state import StateDirectory
from kvasir.worker.serving.holdings import join_holdings
from kvasir.worker.slices.http import make_client
from kvasir.worker.slices.store import SliceStore, StoreOptions

MARKET_TIMEOUT = httpx.Timeout(20.0, connect=10.0)


async def run_agent(config: AgentConfig, stop: Callable[[], asyncio.Future[str]]) -> None:
    """Work until `stop` yields a reason. Raises ConfigError or KernelError when it cannot go on."""
    directory = StateDirectory(config.state_dir)
    headers = {"user-agent": f"kvasir-worker/{__version__}"}
    with directory.in_use():
        async with AsyncExitStack() as stack:
            slices = await stack.enter_async_context(make_client())
            market = await stack.enter_async_context(
                httpx.AsyncClient(timeout=MARKET_TIMEOUT, headers=headers, trust_env=False)
            )
            fetcher = Fetcher(
                config.site,
                config.budget_bytes,
                lambda token: SliceStore(directory.slices, slices, token, StoreOptions(config.budget_bytes)),
            )
            world = Surroundings(
                market=MarketClient(market, config.site),
                fetcher=fetcher,
                directory=directory,
                report=report_for(config.json),
                make_edge=lambda changed: AgentEdge(edge_config(config.n_threads, config.kernel), changed),
                clock=time.monotonic,
                jitter=random.random,
                open_slices=partial(join_holdings, backend=config.backend),
            )
            agent = Agent(_options(config), world, given_credentials(config.token) if config.token else None)
            stop().add_done_callback(lambda done: agent.stop(done.result()))
            await agent.run()


def _options(config: AgentConfig) -> AgentOptions:
    device_kind = "cpu" if config.backend.kind == "cpu" else "gpu"
    facts = [("os", platform.system()), ("device_kind", device_kind), ("backend", "native")]
    if config.region:
        facts.append(("region", config.region))
    return AgentOptions(
        site=config.site,
        room_bytes=config.room_bytes,
        invite=config.invite,
        name=config.name,
        relay_url=config.relay_url,
        kernel=config.kernel,
        n_threads=config.n_threads,
        facts=tuple(facts),
    )
