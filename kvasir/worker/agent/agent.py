"""The worker that needs only a site's address and a budget: a loop that asks `plan` for an action and performs it.

`start` runs one for `kvasir-worker join URL --budget SIZE`. Its knowledge is one `WorkerState`; it acts through the
market client, the fetcher and the edge, which tests replace. All decisions are `plan`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from kvasir.edge.reconnect import reconnect_delay_s
from kvasir.errors import ConfigError
from kvasir.worker.agent import plan
from kvasir.worker.agent import plan_actions as do
from kvasir.worker.agent import plan_changes as after
from kvasir.worker.agent.config import AgentConfig
from kvasir.worker.agent.edge import AgentEdge, OnChange
from kvasir.worker.agent.fetch import Fetcher, Outcome
from kvasir.worker.agent.market_client import (
    Heartbeat,
    MarketAwayError,
    MarketClient,
    MarketRefusedError,
    NodeCredentials,
    NothingWanted,
)
from kvasir.worker.agent.plan_state import Piece, Ranges, WorkerState
from kvasir.worker.agent.report import (
    Announcer,
    Report,
    assigned_facts,
    assigned_text,
    range_text,
    ranges_facts,
    refusal_text,
)
from kvasir.worker.agent.state import StateDirectory
from kvasir.worker.serving.holdings import Holdings, join_holdings

LEAVE_S = 5.0  # for the last heartbeat
RESERVE_S = 5.0  # at least, before edges that could not be opened are tried again; at random up to twice that


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The world outside an agent. Clocks in seconds; `jitter` returns random numbers in [0, 1). Tests replace it."""

    market: MarketClient
    fetcher: Fetcher
    directory: StateDirectory
    report: Report
    make_edge: Callable[[OnChange], AgentEdge]
    clock: Callable[[], float]
    jitter: Callable[[], float]
    wall_clock: Callable[[], float] = time.time
    open_slices: Callable[..., Holdings] = join_holdings


class Agent:
    """One worker. Call `run`; `stop` ends it in order."""

    def __init__(self, config: AgentConfig, world: Surroundings, given: NodeCredentials | None = None) -> None:
        """Use the node `given` by an operator, else the one in the state directory, else register a new one."""
        self._config = config
        self._world = world
        self._edge = world.make_edge(self._relay_changed)
        self._news = asyncio.Event()
        self._acting: asyncio.Task[None] | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._saved = world.directory.load(config.site)
        self._n_failures = 0
        self._announcer = Announcer(world.report)
        self.state = WorkerState(
            config.room_bytes, model=self._saved.model, pieces=self._saved.pieces_within(config.room_bytes)
        )
        token = given.token if given else world.directory.read_token()
        if token and (given or self._saved.node_id):
            self._become(given or NodeCredentials(self._saved.node_id, token))

    def stop(self, reason: str) -> None:
        """Make `run` withdraw, answer the requests in flight, and return."""
        self.state = replace(self.state, stop_reason=reason)
        self._news.set()
        if self._acting is not None:
            self._acting.cancel()

    async def run(self) -> None:
        """Work until `stop`. Raises ConfigError or KernelError, which say what to do, if the worker cannot continue."""
        try:
            while not self.state.stop_reason:
                self._check_fetch()
                now = self._world.clock()
                action = plan.next_action(self.state, now)
                if action is not None:
                    await self._perform(action)
                    continue
                if plan.is_settled(self.state, now):
                    stated = ranges_facts(self.state.stated)
                    self._announcer.say_new("settled", str(stated), "", ranges=stated)
                await self._wait(plan.wait_s(self.state, now))
            await self._leave(self.state.stop_reason)
        finally:
            self._end_fetch()
            await self._edge.stop(self.state.stop_reason or "the worker cannot continue")
            self._world.fetcher.keep_only(())

    async def _perform(self, action: do.Action) -> None:
        """Run an action; `stop` cancels it unless it must finish."""
        acting = asyncio.get_running_loop().create_task(self._act(action))
        self._acting = None if do.must_finish(action) else acting
        try:
            await acting
        except asyncio.CancelledError:
            if not self.state.stop_reason:
                raise
        except MarketAwayError as error:
            self._n_failures += 1
            delay_s = max(error.retry_after_s, reconnect_delay_s(self._n_failures, self._world.jitter()))
            self.state = after.not_before(self.state, site_s=self._world.clock() + delay_s)
            text = f"the site is away: {error}"
            self._announcer.say_new("away", text, text, problem=str(error))
        except MarketRefusedError as error:
            if error.code != "unknown_model":
                raise ConfigError(refusal_text(error, self._world.directory.token_path)) from error
            self._forget_model(str(error))
        else:
            if isinstance(action, do.Register | do.Beat | do.Volunteer | do.Look):
                self._n_failures = 0
                self._announcer.forget("away")

    async def _act(self, action: do.Action) -> None:
        match action:
            case do.Register():
                await self._register()
            case do.Rotate():
                await self._rotate()
            case do.Serve(ranges):
                await self._serve(ranges)
            case do.Beat(ranges, leases):
                await self._beat(ranges, leases)
            case do.Fetch(piece):
                self.state = replace(self.state, is_fetching=True)
                self._fetching = asyncio.get_running_loop().create_task(self._fetch(piece))
            case do.Volunteer(room_bytes, ranges):
                await self._volunteer(room_bytes, ranges)
            case do.Look():
                await self._look()
            case _:
                self._move(action)

    # Registration and tokens

    async def _register(self) -> None:
        made = await self._world.market.register(self._config.identity.invite, self._config.identity.name)
        self._keep_token(made)
        text = f"registered at {self._config.site} as node {made.node_id}"
        self._announcer.say("registered", text, node_id=made.node_id)

    async def _rotate(self) -> None:
        self._keep_token(await self._world.market.rotate(self.state.node_id))
        self.state = replace(self.state, served=())  # edges must open again with the new token
        self._announcer.say("rotated", "the site gave this node a new token")

    def _keep_token(self, made: NodeCredentials) -> None:
        expires = datetime.fromisoformat(made.expires).timestamp() if made.expires else 0.0
        self._saved = replace(self._saved, node_id=made.node_id, since=self._world.wall_clock(), expires=expires)
        self._save()
        self._world.directory.save_token(made.token)
        self._become(made)

    def _become(self, node: NodeCredentials) -> None:
        self._world.market.token = node.token
        self._world.fetcher.use_token(node.token)
        rotate_s = self._world.clock() + self._saved.rotate_in_s(node.node_id, self._world.wall_clock())
        self.state = after.not_before(replace(self.state, node_id=node.node_id), rotate_s=rotate_s)

    # Assignments, slices and edges

    async def _volunteer(self, room_bytes: int, ranges: Ranges) -> None:
        answer = await self._world.market.volunteer(self.state.node_id, room_bytes, ranges)
        now = self._world.clock()
        if isinstance(answer, NothingWanted):
            self.state = after.not_wanted(self.state, answer, now)
            text = f"no more work now: {answer.reason}"
            self._announcer.say_new("waiting", text, text, reason=answer.reason)
            return
        if self.state.model is not None and answer.model.fingerprint != self.state.model.fingerprint:
            self._forget_model(f"the site serves {answer.model.name} now")
        self.state = after.promised(self.state, answer, now)
        self._saved = replace(self._saved, relay_url=answer.relay_url)
        self._save()
        self._announcer.say("promised", assigned_text(answer), **assigned_facts(answer))

    async def _fetch(self, piece: Piece) -> None:
        label, world = range_text(piece.range), self._world
        others = sum(other.n_bytes for other in self.state.pieces if other.range != piece.range)
        fingerprint = self.state.model.fingerprint if self.state.model else ""
        done = await world.fetcher.fetch(
            fingerprint, piece, others, lambda there, total: world.report.progress(label, there, total)
        )
        self.state = after.fetched(self.state, done, world.clock(), world.jitter())
        facts = {"range": ranges_facts([piece.range])[0]}
        if done.outcome is Outcome.FETCHED:
            self._announcer.say("fetched", f"fetched and verified: {label}", **facts)
        else:
            self._announcer.say("fetch_failed", f"{label}: {done.problem}", problem=done.problem, **facts)
        self._save()
        self._news.set()

    async def _serve(self, ranges: Ranges) -> None:
        world = self._world
        if not ranges:
            await self._edge.stop("this worker holds no experts now")
        else:
            choice = self._config.kernel._replace(name=self._kernel())
            holdings = await asyncio.to_thread(world.open_slices, world.fetcher.paths(ranges), *choice)
            url = self._config.relay_url or self._saved.relay_url
            if not await self._edge.serve(holdings, url, world.market.token):
                self._serve_later()
                return
            self._announcer.say(
                "serving", f"serving {holdings.n_experts} experts of {holdings.model_name}, kernel {choice.name}",
                n_experts=holdings.n_experts, ranges=ranges_facts(holdings.ranges), relay=url, kernel=choice.name,
            )  # fmt: skip
        self.state = after.served(self.state, ranges)
        world.fetcher.keep_only([piece.range for piece in self.state.pieces])

    def _kernel(self) -> str:
        """Return the kernel that --kernel names; with "auto" the one that the site's assignments name."""
        chosen = self._config.kernel.name
        named = {piece.kernel for piece in self.state.pieces if piece.is_fetched} if chosen == "auto" else set()
        return next((name for name in ("float", "kx1") if name in named), chosen)

    def _serve_later(self) -> None:
        self.state = after.not_before(self.state, serve_s=self._world.clock() + RESERVE_S * (1 + self._world.jitter()))

    def _relay_changed(self, is_joined: bool, reason: str) -> None:
        if not self._edge.is_serving and self.state.served and not self.state.stop_reason:
            self.state = replace(self.state, served=())  # serving failed: open the edges again
            self._serve_later()
        was_joined = self.state.is_joined
        self.state = after.relay_changed(self.state, is_joined, self._world.clock())
        if is_joined and not was_joined:
            self._announcer.say("joined", "joined the relay")
        elif was_joined and not is_joined:
            self._announcer.say("lost", f"lost the relay ({reason}); dialling again", problem=reason)
        self._news.set()

    def _check_fetch(self) -> None:
        """Raise the error of a download that failed by a defect; otherwise it would seem to go on."""
        if self._fetching is not None and self._fetching.done():
            fetching, self._fetching = self._fetching, None
            fetching.result()

    def _end_fetch(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            self._fetching = None

    # Heartbeats, demand and moves

    async def _beat(self, ranges: Ranges, leases: tuple[str, ...]) -> None:
        if self.state.model is None:
            return
        beat = Heartbeat(self.state.node_id, self.state.model, ranges, leases, self._config.facts)
        lease_s = await self._world.market.heartbeat(beat)
        is_new = ranges != self.state.stated
        self.state = after.beaten(self.state, ranges, lease_s, self._world.clock(), self._world.jitter())
        if is_new:
            self._save()
            self._announcer.say("stated", "", ranges=ranges_facts(ranges), lease_s=lease_s)

    async def _look(self) -> None:
        if self.state.model is not None:
            demand = await self._world.market.demand(self.state.model.fingerprint)
            self.state = after.looked(self.state, demand, self._world.clock(), self._config.pace.look_s)

    def _move(self, action: do.Action) -> None:
        now, pace = self._world.clock(), self._config.pace
        match action:
            case do.PlanMove(item):
                wait_s = pace.move_least_s + (pace.move_most_s - pace.move_least_s) * self._world.jitter()
                self.state = after.moving(self.state, item, now + wait_s)
            case do.Withdraw(item):
                self.state = after.withdrawn(self.state, item, now)
            case do.Stay():
                self.state = after.stayed(self.state)
            case do.Drop(item):
                self.state = after.dropped(self.state, item, now)
                self._save()
                text = f"gave up {range_text(item)}: enough other workers hold it, and other experts lack replicas"
                self._announcer.say("dropped", text, range=ranges_facts([item])[0])

    def _forget_model(self, why: str) -> None:
        self._end_fetch()
        self.state = after.forgotten(self.state)
        self._world.fetcher.keep_only(())
        self._save()
        self._announcer.say("model_changed", f"gave up all experts: {why}", reason=why)

    async def _leave(self, reason: str) -> None:
        state = self.state
        if state.node_id and state.model is not None:
            beat = Heartbeat(state.node_id, state.model, (), is_leaving=True)
            with contextlib.suppress(MarketAwayError, MarketRefusedError, TimeoutError):  # else its lease ends soon
                async with asyncio.timeout(LEAVE_S):
                    await self._world.market.heartbeat(beat)
        await self._edge.stop(reason)
        self._announcer.say("stopped", f"stopped: {reason}", reason=reason)

    # Saved state

    def _save(self) -> None:
        self._saved = replace(self._saved, model=self.state.model, pieces=self.state.pieces)
        self._world.directory.save(self._saved)

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()
