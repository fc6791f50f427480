"""A site in memory for tests of the agent: a market of one model, its slices, its relay. Faults are set by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from kvasir.experts import ExpertRange
from kvasir.slicing.budget import WORKER_OVERHEAD_BYTES
from kvasir.worker.agent.agent import Agent, Surroundings
from kvasir.worker.agent.config import AgentConfig, NodeIdentity, Pace
from kvasir.worker.agent.demand import Demand, DemandRun
from kvasir.worker.agent.edge import AgentEdge
from kvasir.worker.agent.fetch import Fetcher
from kvasir.worker.agent.market_client import Assigned, Heartbeat, MarketClient, NodeCredentials, NothingWanted
from kvasir.worker.agent.plan_state import SiteModel
from kvasir.worker.agent.state import StateDirectory
from kvasir.worker.slices.store import HeldSlice, SliceOffer
from tests.unit.fake_experts import fake_holdings

SITE, RELAY = "https://site.test", "wss://site.test/relay"
MODEL = SiteModel("demo", "0a" * 32, 4, 8)
EXPERT_BYTES = 100
LEASE_S = 45.0
AT_TARGET = NothingWanted("expert coverage at target", "", 20.0)


@dataclass
class FakeMarket:
    """Offers `offers` one by one, then says `nothing`. `fault` is raised instead of every answer."""

    loop: asyncio.AbstractEventLoop
    offers: list[ExpertRange] = field(default_factory=list)
    nothing: NothingWanted = AT_TARGET
    runs: tuple[DemandRun, ...] = ()
    runs_by_stated: dict[tuple[ExpertRange, ...], tuple[DemandRun, ...]] = field(default_factory=dict)
    model: SiteModel = MODEL
    fault: Exception | None = None
    token: str = ""
    calls: list[str] = field(default_factory=list)
    beats: list[tuple[float, Heartbeat]] = field(default_factory=list)
    n_tokens: int = 0
    expires: str = ""
    seconds: dict[str, float] = field(default_factory=dict)  # until an answer comes, by call

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.fault is not None:
            raise self.fault

    async def register(self, invite: str, name: str) -> NodeCredentials:
        self._called("register")
        assert (invite, name) == ("code", "kvasir-worker")
        self.n_tokens += 1
        await asyncio.sleep(self.seconds.get("register", 0))
        return NodeCredentials("node-1", f"kvs-{self.n_tokens}", self.expires)

    async def rotate(self, node_id: str) -> NodeCredentials:
        self._called("rotate")
        self.n_tokens += 1
        await asyncio.sleep(self.seconds.get("rotate", 0))
        return NodeCredentials(node_id, f"kvs-{self.n_tokens}", "")

    async def heartbeat(self, beat: Heartbeat) -> float:
        self._called("heartbeat")
        self.beats.append((self.loop.time(), beat))
        return LEASE_S

    async def demand(self, model: str) -> Demand:
        self._called("demand")
        return Demand(model, self.runs_by_stated.get(self.stated, self.runs))

    async def volunteer(self, node_id: str, room_bytes: int, ranges: Any) -> Assigned | NothingWanted:
        self._called("volunteer")
        if not self.offers:
            return self.nothing
        item = self.offers.pop(0)
        n_bytes = EXPERT_BYTES * item.n_experts
        return Assigned(self.model, item, n_bytes, "kx1", 1.0, 2000, RELAY, f"{len(self.calls):016x}")

    @property
    def stated(self) -> tuple[ExpertRange, ...]:
        return self.beats[-1][1].ranges


class FakeLock:
    def release(self) -> None:
        pass


@dataclass
class FakeStore:
    """Slices that take `seconds` to come; each entry of `faults` is raised once."""

    token: str
    seconds: float = 1.0
    faults: list[Exception] = field(default_factory=list)
    fetched: list[ExpertRange] = field(default_factory=list)

    async def obtain(self, offer: SliceOffer, progress: Any = None, memory_bytes: int | None = None) -> HeldSlice:
        await asyncio.sleep(self.seconds)
        if self.faults:
            raise self.faults.pop(0)
        assert progress is not None
        progress(1, 1)
        self.fetched += offer.ranges
        return HeldSlice(Path("slice"), offer.fingerprint, offer.ranges, 1, 0, cast("Any", FakeLock()))


class FakeRelayWorker:
    """Joins at once."""

    def __init__(self, relay: Any, holdings: Any, *, on_joined: Callable[[], None], on_lost: Callable[[str], None]):
        self.token, self.lose, self.join = relay.token, on_lost, on_joined
        self.stopped = asyncio.Event()

    async def run(self) -> None:
        self.join()
        await self.stopped.wait()

    def stop(self, reason: str) -> None:
        self.stopped.set()


class Reporter:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.words: list[str] = []

    def say(self, event: str, text: str, **facts: Any) -> None:
        self.events.append(event)
        self.words.append(text + str(facts))

    def progress(self, label: str, done: int, total: int) -> None:
        assert done <= total


class World:
    """Everything outside one agent. `start` runs it; `restart` begins a new process over the same directory."""

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: Path, *offers: ExpertRange, room: int = 10_000):
        self.loop = loop
        self.market = FakeMarket(loop, list(offers))
        self.directory = StateDirectory(directory)
        self.directory.path.mkdir(exist_ok=True)
        self.report = Reporter()
        self.relays: list[FakeRelayWorker] = []
        self.stores: list[FakeStore] = []
        self.pace = Pace()
        self.room = room
        self.wall_s = 0.0  # Unix time at the loop's 0

    def make(self, given: NodeCredentials | None = None) -> Agent:
        config = AgentConfig(
            SITE,
            self.room + WORKER_OVERHEAD_BYTES,
            self.directory.path,
            NodeIdentity(invite="code"),
            pace=self.pace,
        )
        surroundings = Surroundings(
            market=cast("MarketClient", self.market),
            fetcher=Fetcher(SITE, self.room, self._make_store),
            directory=self.directory,
            report=self.report,
            make_edge=lambda changed: AgentEdge(changed, self._make_worker),
            clock=self.loop.time,
            jitter=lambda: 0.5,
            wall_clock=lambda: self.wall_s + self.loop.time(),
            open_slices=lambda *_: fake_holdings(),
        )
        return Agent(config, surroundings, given)

    def _make_store(self, token: str) -> FakeStore:
        self.stores.append(FakeStore(token))
        return self.stores[-1]

    def _make_worker(self, *args: Any, **callbacks: Any) -> FakeRelayWorker:
        self.relays.append(FakeRelayWorker(*args, **callbacks))
        return self.relays[-1]
