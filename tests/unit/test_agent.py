"""The agent's life in a site in memory, on a clock that jumps: what it does, in which order, and what survives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvasir.errors import ConfigError
from kvasir.experts import ExpertRange
from kvasir.worker.agent.agent import Agent
from kvasir.worker.agent.config import Pace
from kvasir.worker.agent.demand import DemandRun
from kvasir.worker.agent.market_client import MarketAwayError, MarketRefusedError, NodeCredentials, NothingWanted
from kvasir.worker.agent.plan_state import SiteModel
from kvasir.worker.slices.http import SourceRefusedError, TransferError
from kvasir.worker.slices.store import DoesNotFitError
from tests.unit.agent_world import EXPERT_BYTES, LEASE_S, SITE, World
from tests.unit.virtual_time import VirtualLoop, run

A, B, C = ExpertRange(0, 0, 4), ExpertRange(0, 4, 8), ExpertRange(1, 0, 8)
FULL = NothingWanted("the budget is full", "", 20.0)


@asynccontextmanager
async def working(world: World, given: NodeCredentials | None = None) -> AsyncIterator[Agent]:
    """An agent that runs inside; asked to leave at the end."""
    agent = world.make(given)
    task = asyncio.get_running_loop().create_task(agent.run())
    try:
        yield agent
    finally:
        agent.stop("the test is over")
        await task


def until(world: World, condition: Callable[[], bool]) -> Any:
    """Wait, in seconds that pass at once; never for more than an hour."""

    async def wait() -> None:
        async with asyncio.timeout(3600):
            while not condition():
                await asyncio.sleep(0.1)

    return wait()


def threads_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    async def here(call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)

    monkeypatch.setattr(asyncio, "to_thread", here)


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads_run_here(monkeypatch)  # a clock that jumps does not wait for them


def test_from_nothing_to_serving_and_out_again(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A, C)
        async with working(world):
            await until(world, lambda: "settled" in world.report.events)
            asked = [call for call in world.market.calls if call != "heartbeat"]
            assert asked == ["register", "volunteer", "volunteer", "volunteer"]
            assert world.stores[-1].fetched == [A, C]
            assert len(world.relays) == 1  # opened once, with all
            assert world.market.stated == (A, C)
        assert world.market.beats[-1][1].is_leaving
        assert world.report.events[-1] == "stopped"
        assert world.relays[0].stopped.is_set()
        assert "kvs-" not in " ".join(world.report.words)

    run(test)


def test_heartbeats_go_on_well_within_the_lease_and_keep_promises(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A, C)
        agent = world.make()
        world.stores[:] = []
        task = loop.create_task(agent.run())
        await until(world, lambda: bool(world.stores))
        world.stores[-1].seconds = 200.0  # a long download
        await until(world, lambda: world.stores[-1].fetched == [A, C])
        await asyncio.sleep(300)
        agent.stop("done")
        await task
        moments = [at for at, _ in world.market.beats]
        assert max(after - before for before, after in pairwise(moments)) < LEASE_S / 2
        fetching = [beat for _, beat in world.market.beats if beat.leases]
        assert len(fetching) > 10
        assert world.market.beats[-2][1].leases == ()

    run(test)


def test_a_range_is_added_while_others_are_served(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A)
        async with working(world):
            await until(world, lambda: "settled" in world.report.events)
            world.market.offers.append(C)
            await until(world, lambda: len(world.relays) == 2)
            assert not world.relays[0].stopped.is_set()
            await until(world, lambda: world.market.stated == (A, C))
            await until(world, world.relays[0].stopped.is_set)
            assert not world.relays[1].stopped.is_set()

    run(test)


def test_a_restart_is_the_same_node_with_the_same_ranges(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        first = World(loop, tmp_path, A, C)
        async with working(first):
            await until(first, lambda: "settled" in first.report.events)
        second = World(loop, tmp_path)
        async with working(second):
            await until(second, lambda: "settled" in second.report.events)
            assert second.stores[-1].token == first.market.token
            assert second.market.stated == (A, C)
        assert "register" not in second.market.calls
        third = World(loop, tmp_path, room=EXPERT_BYTES * 4)
        async with working(third):
            await until(third, lambda: "settled" in third.report.events)
            assert third.market.stated == (A,)

    run(test)


def test_a_given_token_registers_nobody(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A)
        async with working(world, NodeCredentials("node-9", "kvs-given")):
            await until(world, lambda: "settled" in world.report.events)
            assert world.market.beats[-1][1].node_id == "node-9"
            assert world.relays[0].token == world.stores[-1].token == world.market.token
        assert "register" not in world.market.calls
        assert not world.directory.token_path.exists()

    run(test)


def test_a_site_that_is_away_is_asked_less_and_less_while_serving_goes_on(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A)
        async with working(world):
            await until(world, lambda: "settled" in world.report.events)
            world.market.fault = MarketAwayError("refused")
            world.market.calls.clear()
            await asyncio.sleep(600)
            assert 20 < len(world.market.calls) < 60
            assert not world.relays[0].stopped.is_set()
            assert world.report.events.count("away") == 1
            world.market.fault = None
            n_beats = len(world.market.beats)
            await asyncio.sleep(60)
            assert len(world.market.beats) > n_beats

    run(test)


def test_a_site_that_says_when_is_not_asked_before(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A)
        world.market.fault = MarketAwayError("busy", 100.0)
        async with working(world):
            await asyncio.sleep(99)
            assert world.market.calls == ["register"]
            world.market.fault = None
            await until(world, lambda: "settled" in world.report.events)

    run(test)


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (401, "token_refused", "start again"),
        (403, "invite_needed", "--invite CODE"),
        (403, "registration_closed", "--token-file FILE"),
        (400, "malformed", "refuses this worker"),
    ],
)
def test_a_refusal_ends_it_with_what_to_do(tmp_path: Path, status: int, code: str, advice: str) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A)
        agent = world.make()
        world.market.fault = MarketRefusedError(status, code, "no")
        with pytest.raises(ConfigError, match=advice):
            await agent.run()

    run(test)


def test_a_refusal_while_serving_closes_the_edges_too(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A)
        task = loop.create_task(world.make().run())
        await until(world, lambda: "settled" in world.report.events)
        world.market.fault = MarketRefusedError(401, "token_refused", "revoked")
        with pytest.raises(ConfigError):
            await task
        assert world.relays[0].stopped.is_set()

    run(test)


def test_a_relay_that_is_lost_is_told_and_stated_again_when_it_is_back(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A)
        async with working(world):
            await until(world, lambda: "settled" in world.report.events)
            world.relays[0].lose("connection lost")
            await until(world, lambda: world.market.stated == ())
            world.relays[0].join()
            await until(world, lambda: world.market.stated == (A,))
            assert world.report.events.count("lost") == 1

    run(test)


@pytest.mark.parametrize("fault", [DoesNotFitError("too large"), SourceRefusedError("404")])
def test_a_piece_that_cannot_be_had_is_given_up(tmp_path: Path, fault: Exception) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A, C)
        async with working(world):
            await until(world, lambda: bool(world.stores))
            world.stores[-1].faults.append(fault)
            await until(world, lambda: "settled" in world.report.events)
            assert world.market.stated == (C,)
            assert "fetch_failed" in world.report.events

    run(test)


def test_a_download_that_fails_is_tried_again_and_given_up_in_the_end(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A)
        async with working(world):
            await until(world, lambda: bool(world.stores))
            world.stores[-1].faults += [TransferError("cut")] * 2
            await until(world, lambda: "settled" in world.report.events)
            assert world.market.stated == (A,)
            world.stores[-1].faults += [TransferError("cut")] * 3
            world.market.offers.append(C)
            await until(world, lambda: world.report.events.count("fetch_failed") == 5)
            await asyncio.sleep(200)
            assert world.market.stated == (A,)

    run(test)


def test_a_range_that_enough_others_hold_is_given_for_one_that_is_lacking(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A, B)
        world.pace = Pace(look_s=60.0, move_least_s=60.0, move_most_s=300.0)
        world.market.nothing = FULL
        world.market.runs = (DemandRun(A, 4, 2), DemandRun(B, 2, 2), DemandRun(C, 1, 2))
        async with working(world):
            await until(world, lambda: "settled" in world.report.events)
            settled = loop.time()
            await until(world, lambda: world.market.stated == (B,))
            assert loop.time() - settled > 60
            world.market.offers.append(C)
            await until(world, lambda: world.market.stated == (B, C))
            assert world.report.events.count("dropped") == 1

    run(test)


def test_a_range_that_would_be_missed_is_kept(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A, B)
        world.market.nothing = FULL
        world.market.runs = (DemandRun(A, 3, 2), DemandRun(B, 2, 2), DemandRun(C, 1, 2))
        others_left = (DemandRun(A, 1, 2), DemandRun(B, 2, 2), DemandRun(C, 1, 2))
        world.market.runs_by_stated[B,] = others_left
        async with working(world):
            await until(world, lambda: "settled" in world.report.events)
            await until(world, lambda: world.market.beats[-2][1].ranges == (B,))
            await until(world, lambda: world.market.stated == (ExpertRange(0, 0, 8),))
            assert "dropped" not in world.report.events
            assert len(world.relays) == 1  # it was served all the time

    run(test)


def test_another_model_is_taken_up_from_the_beginning(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A)
        async with working(world):
            await until(world, lambda: "settled" in world.report.events)
            world.market.model = SiteModel("new", "0b" * 32, 2, 8)
            world.market.offers.append(C)
            world.market.fault = MarketRefusedError(404, "unknown_model", "this site serves new")
            await until(world, lambda: "model_changed" in world.report.events)
            world.market.fault = None
            await until(world, lambda: world.market.stated == (C,))
            assert world.market.beats[-1][1].model.name == "new"

    run(test)


def test_a_token_is_exchanged_in_time_and_used_everywhere(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A)
        world.market.expires = "1970-01-01T01:00:00Z"  # the loop begins at 1000 s
        async with working(world):
            await until(world, lambda: "rotated" in world.report.events)
            assert 2700 < loop.time() < 2760
            await until(world, lambda: len(world.relays) == 2)
            assert (world.relays[1].token, world.stores[-1].token, world.market.token) == ("kvs-2",) * 3
            assert world.directory.read_token() == "kvs-2"

    run(test)


def test_it_leaves_in_the_middle_of_anything(tmp_path: Path) -> None:
    async def test(loop: VirtualLoop) -> None:
        for seconds in (0.0, 0.5, 1.5, 2.5, 10.0):
            world = World(loop, tmp_path / str(seconds), A, C)
            agent = world.make()
            task = loop.create_task(agent.run())
            await asyncio.sleep(seconds)
            agent.stop("now")
            asked = loop.time()
            await task
            assert loop.time() - asked < 5
            assert world.report.events[-1] == "stopped"

    run(test)


@pytest.mark.parametrize("action", ["register", "rotate"])
def test_a_stop_waits_for_a_token_that_is_under_way(tmp_path: Path, action: str) -> None:
    async def test(loop: VirtualLoop) -> None:
        world = World(loop, tmp_path, A)
        world.market.expires = "1970-01-01T01:00:00Z"
        world.market.seconds[action] = 5.0
        agent = world.make()
        task = loop.create_task(agent.run())
        await until(world, lambda: action in world.market.calls)
        agent.stop("now")
        await task
        assert world.directory.read_token() == world.market.token == f"kvs-{world.market.n_tokens}"
        assert world.directory.load(SITE).node_id == "node-1"

    run(test)
