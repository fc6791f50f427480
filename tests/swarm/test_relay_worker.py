"""Workers behind a relay as real processes: exact, failing at once when they are killed, back when the relay is."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir.edge.signs_of_life import KeepAlive
from kvasir.errors import EdgeError, EdgeTimeout, HandshakeRefused
from kvasir.experts import ExpertRange, FloatRows
from kvasir.gguf.index import GGUFIndex
from kvasir.relay.directory import FixedDirectory
from kvasir.relay.edge import RelayEdge, RelayEdges
from kvasir.relay.keeper import RelayKeeper
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slices import plan_slice, write_slice
from kvasir.wire.frames import Hello, ReplyType, Role, f16_reply
from kvasir.worker.serving.holdings import Holdings, open_holdings
from tests.swarm.join_process import JoinProcess, join_process
from tests.swarm.relay_process import PATIENCE_S, ROOT, RelayProcess, relay_process, sandbox

MODEL_PATH = ROOT / "models" / "kvasir-demo-moe.q4_k_m.gguf"
RANGES = (ExpertRange(1, 2, 6), ExpertRange(4, 0, 8))


@dataclass(frozen=True, slots=True)
class World:
    """A relay, a slice, and the same experts in this process: the answers that workers must give."""

    relay: RelayProcess
    slice_path: Path
    held: Holdings

    def hello(self, **changes: Any) -> Hello:
        facts = {
            "model_fingerprint": self.held.model_fingerprint,
            "kernel_fingerprint": self.held.kernel.fingerprint,
            "token": self.relay.tokens[Role.BACKBONE],
            **changes,
        }
        return Hello(Role.BACKBONE, kernel=self.held.kernel.name, **facts)

    def worker(self, directory: Path) -> Any:
        return join_process(self.relay.url, self.relay.tokens[Role.WORKER], self.slice_path, directory)


@pytest.fixture(scope="module")
def slice_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slice") / "slice.gguf"
    with GGUFIndex.open(MODEL_PATH) as index:
        write_slice(plan_slice(index, ModelCard.from_index(index), RANGES), path)
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, slice_path: Path) -> Iterator[World]:
    with sandbox(tmp_path_factory) as relay:
        yield World(relay, slice_path, open_holdings(slice_path, "auto", 1))


class Backbone:
    """A backbone's end: edges as they open, and random work for them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._opened: asyncio.Queue[RelayEdge] = asyncio.Queue()
        self.edges: RelayEdges

    async def dial(self, url: str = "", keep_alive: KeepAlive | None = None, **changes: Any) -> None:
        self.edges = await RelayEdges.connect(
            url or self._world.relay.url,
            self._world.hello(**changes),
            self._opened.put_nowait,
            deadline_s=PATIENCE_S,
            keep_alive=keep_alive,
        )

    async def edge(self) -> RelayEdge:
        """The next edge that opens."""
        return await asyncio.wait_for(self._opened.get(), PATIENCE_S)

    def work(self, seed: int, n_rows: int) -> tuple[Any, ...]:
        random = np.random.default_rng(seed)
        held, layer = self._world.held, [1, 4][seed % 2]
        rows = held.kernel.encode_rows(random.standard_normal((n_rows, held.d_model)).astype(np.float32))
        pair_rows = np.repeat(np.arange(n_rows, dtype=np.int32), 2)
        return layer, rows, held.kernel.row_format, pair_rows, random.integers(0, 4, 2 * n_rows, np.int32)

    def expected(self, seed: int, n_rows: int) -> FloatRows:
        layer, rows, _, pair_rows, pair_ids = self.work(seed, n_rows)
        return self._world.held.layers[layer].compute(rows, pair_rows, pair_ids)

    async def ask(self, edge: RelayEdge, seed: int, n_rows: int, reply: ReplyType = ReplyType.F32) -> FloatRows:
        layer, rows, row_format, pair_rows, pair_ids = self.work(seed, n_rows)
        return await edge.dispatch(layer, rows, row_format, pair_rows, pair_ids, PATIENCE_S, reply=reply)

    async def check(self, edge: RelayEdge, seed: int, n_rows: int) -> None:
        assert (await self.ask(edge, seed, n_rows)).tobytes() == self.expected(seed, n_rows).tobytes()


def test_results_through_the_relay_have_the_bits_of_this_process(world: World, tmp_path: Path) -> None:
    async def scenario(worker: JoinProcess) -> None:
        one, two = Backbone(world), Backbone(world)
        await one.dial()
        await two.dial()
        edges = [(one, await one.edge()), (two, await two.edge())]
        assert all(edge.coverage == RANGES for _, edge in edges)
        jobs = [(who, edge, seed, 1 + seed * 7) for seed in range(12) for who, edge in edges]
        await asyncio.gather(*(who.check(edge, seed, n_rows) for who, edge, seed, n_rows in jobs))
        edge = edges[0][1]
        await one.check(edge, 3, 9000)  # more rows than a frame takes: split, and put together again
        rounded, _ = f16_reply(one.expected(5, 40))
        assert (await one.ask(edge, 5, 40, ReplyType.F16)).tobytes() == rounded.tobytes()
        assert edge.bytes_sent > 9000 * world.held.d_model
        assert edge.bytes_received > 18000 * world.held.d_model * 4
        await edge.close()
        assert edge not in one.edges.edges
        await two.check(edges[1][1], 1, 5)
        await one.edges.close()
        await two.edges.close()

    with world.worker(tmp_path) as worker:
        assert worker.says()["event"] == "joined"
        asyncio.run(scenario(worker))


def test_a_killed_worker_fails_its_edge_at_once_and_no_other(world: World, tmp_path: Path) -> None:
    (tmp_path / "doomed").mkdir()

    async def scenario(doomed: JoinProcess) -> None:
        backbone = Backbone(world)
        await backbone.dial()
        first = await backbone.edge()
        with world.worker(tmp_path) as worker:
            assert await asyncio.to_thread(worker.says)
            second = await backbone.edge()
            doomed.suspend()
            calls = [asyncio.create_task(backbone.ask(first, seed, 3)) for seed in range(4)]
            await backbone.check(second, 1, 3)
            assert not any(call.done() for call in calls)
            doomed.kill()
            for call in calls:
                with pytest.raises(EdgeError, match="worker gone") as failed:
                    await call
                assert not isinstance(failed.value, EdgeTimeout)
            assert "worker gone" in await first.closed
            with pytest.raises(EdgeError):
                await backbone.ask(first, 0, 1)
            await backbone.check(second, 2, 3)
        await backbone.edges.close()

    with world.worker(tmp_path / "doomed") as doomed:
        assert doomed.says()["event"] == "joined"
        asyncio.run(scenario(doomed))


def test_a_worker_that_is_told_to_stop_says_goodbye_and_answers(world: World, tmp_path: Path) -> None:
    async def scenario(worker: JoinProcess) -> None:
        backbone = Backbone(world)
        await backbone.dial()
        edge = await backbone.edge()
        call = asyncio.create_task(backbone.ask(edge, 2, 500))
        await backbone.check(edge, 1, 1)
        worker.interrupt()
        assert (await call).tobytes() == backbone.expected(2, 500).tobytes()
        await asyncio.wait_for(asyncio.shield(edge.closed), PATIENCE_S)
        assert not edge.is_available
        await backbone.edges.close()

    with world.worker(tmp_path) as worker:
        assert worker.says()["event"] == "joined"
        asyncio.run(scenario(worker))
        assert worker.says() == {"event": "stopped", "reason": "the worker got SIGTERM"}
        assert worker.process.wait(PATIENCE_S) == 0


def test_a_relay_that_dies_fails_every_edge_and_workers_come_back_to_it(slice_path: Path, tmp_path: Path) -> None:
    held = open_holdings(slice_path, "auto", 1)

    async def lose(world: World) -> None:
        backbone = Backbone(world)
        await backbone.dial()
        edge = await backbone.edge()
        await backbone.check(edge, 1, 2)
        world.relay.process.kill()
        await asyncio.wait_for(asyncio.shield(edge.closed), PATIENCE_S)
        with pytest.raises(EdgeError):
            await backbone.ask(edge, 1, 1)
        assert await backbone.edges.closed

    async def regain(world: World) -> None:
        backbone = Backbone(world)
        await backbone.dial()
        await backbone.check(await backbone.edge(), 1, 2)
        await backbone.edges.close()

    with relay_process(tmp_path) as relay:
        world = World(relay, slice_path, held)
        (tmp_path / "worker").mkdir()
        with world.worker(tmp_path / "worker") as worker:
            assert worker.says()["event"] == "joined"
            asyncio.run(lose(world))
            port = int(relay.url.rsplit(":", 1)[1].split("/")[0])
            with relay_process(tmp_path, port) as again:
                assert worker.says()["event"] == "joined"
                asyncio.run(regain(World(again, slice_path, held)))


def test_a_relay_that_falls_silent_is_given_up(tmp_path: Path, slice_path: Path) -> None:
    held = open_holdings(slice_path, "auto", 1)

    async def scenario(world: World) -> None:
        backbone = Backbone(world)
        await backbone.dial(keep_alive=KeepAlive(0.1, 0.3))
        os.kill(world.relay.process.pid, signal.SIGSTOP)
        reason = await asyncio.wait_for(asyncio.shield(backbone.edges.closed), PATIENCE_S)
        assert "no sign of life" in reason

    with relay_process(tmp_path) as relay:
        try:
            asyncio.run(scenario(World(relay, slice_path, held)))
        finally:
            os.kill(relay.process.pid, signal.SIGCONT)


def test_a_backbone_with_a_bad_token_hears_why(world: World) -> None:
    async def scenario() -> None:
        with pytest.raises(HandshakeRefused, match=r"refused \(TOKEN\): token: this is not a node token"):
            await Backbone(world).dial(token="wrong")  # noqa: S106 (that is the point)

    asyncio.run(scenario())


def test_nobody_at_the_address_is_an_edge_error(world: World) -> None:
    async def scenario() -> None:
        with pytest.raises(EdgeError, match="cannot be reached"):
            await Backbone(world).dial("ws://127.0.0.1:9/relay")
        with pytest.raises(EdgeError, match="cannot be reached"):
            await Backbone(world).dial(world.relay.url + "/elsewhere")

    asyncio.run(scenario())


def test_a_refused_worker_goes_on_trying_and_its_token_is_nowhere(world: World, tmp_path: Path) -> None:
    token = "kvs-0123456789abcdef-" + "s" * 43
    with join_process(world.relay.url, token, world.slice_path, tmp_path) as worker:
        while "refused (TOKEN)" not in worker.log.read_text():
            assert worker.process.poll() is None
        worker.interrupt()
        assert worker.says()["event"] == "stopped"
        assert worker.process.wait(PATIENCE_S) == 0
    for log in (worker.log, world.relay.log):
        assert "s" * 43 not in log.read_text()


class Listing(FixedDirectory):
    """A directory that can be away."""

    is_away = False

    async def listed(self) -> Mapping[str, str]:
        if self.is_away:
            raise ConnectionError("no directory")
        return await super().listed()


def test_a_keeper_dials_all_relays_follows_the_directory_and_redials(slice_path: Path, tmp_path: Path) -> None:
    held = open_holdings(slice_path, "auto", 1)
    places = [tmp_path / name for name in ("one", "two", "worker")]
    for place in places:
        place.mkdir()

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.02)

    async def scenario(one: RelayProcess, two: RelayProcess) -> None:
        world = World(one, slice_path, held)
        opened: asyncio.Queue[RelayEdge] = asyncio.Queue()
        directory = Listing({"one": one.url, "nobody": "ws://127.0.0.1:9/relay"})
        keeper = RelayKeeper(directory, world.hello(), opened.put_nowait, refresh_s=0.05, jitter=lambda: 0.0)
        running = asyncio.create_task(keeper.run())
        await asyncio.wait_for(keeper.has_tried_all.wait(), PATIENCE_S)
        assert list(keeper.problems) == ["ws://127.0.0.1:9/relay"]
        assert "cannot be reached" in keeper.problems["ws://127.0.0.1:9/relay"]
        edge = await asyncio.wait_for(opened.get(), PATIENCE_S)
        await directory.withdraw("nobody")
        await until(lambda: not keeper.problems)
        # the second relay has a database of its own: this backbone's token is not known there
        await directory.announce("two", two.url)
        await until(lambda: "TOKEN" in keeper.problems.get(two.url, ""))
        directory.is_away = True
        one.process.kill()
        await asyncio.wait_for(asyncio.shield(edge.closed), PATIENCE_S)
        await until(lambda: "cannot be reached" in keeper.problems.get(one.url, ""))
        port = int(one.url.rsplit(":", 1)[1].split("/")[0])
        with ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, relay_process(places[0], port))
            await until(lambda: one.url not in keeper.problems)
            with pytest.raises(EdgeError):
                await Backbone(world).ask(edge, 1, 1)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    with (
        relay_process(places[0]) as one,
        relay_process(places[1]) as two,
        join_process(one.url, one.tokens[Role.WORKER], slice_path, places[2]),
    ):
        asyncio.run(scenario(one, two))
