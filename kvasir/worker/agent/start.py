"""Build an agent from its configuration and run it. `__main__` calls it for the form with a budget."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import httpx

from kvasir import __version__
from kvasir.worker.agent.agent import Agent, Surroundings
from kvasir.worker.agent.config import AgentConfig
from kvasir.worker.agent.edge import AgentEdge
from kvasir.worker.agent.fetch import Fetcher
from kvasir.worker.agent.market_client import MarketClient, given_credentials
from kvasir.worker.agent.report import report_for
from kvasir.worker.agent.state import StateDirectory
from kvasir.worker.slices.http import make_client
from kvasir.worker.slices.store import SliceStore, StoreOptions

MARKET_TIMEOUT = httpx.Timeout(20.0, connect=10.0)


async def run_agent(config: AgentConfig, stop: Callable[[], asyncio.Future[str]]) -> None:
    """Work until `stop` yields a reason. Raises ConfigError or KernelError if the worker cannot continue."""
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
                make_edge=AgentEdge,
                clock=time.monotonic,
                jitter=random.random,
            )
            token = config.identity.token
            agent = Agent(config, world, given_credentials(token) if token else None)
            stop().add_done_callback(lambda done: agent.stop(done.result()))
            await agent.run()
