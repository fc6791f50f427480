"""Workers far away: 20 ms each way and 2 MB/s, dialled or through a relay. Every token and every logit is that of one
process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.edge_pool import EdgePool, WorkerAddress
from backbone.engine.swarm.transport import NoWorkers
from backbone.management.generation import Generation, first_difference, generate
from backbone.sampling_params import SamplingParams
from kvasir.relay.directory import FixedDirectory
from kvasir.wire.frames import Role
from kvasir.worker.serving.holdings import open_holdings
from tests.swarm.join_process import join_process
from tests.swarm.relay_process import PATIENCE_S, relay_process
from tests.swarm.slow_proxy import slow_proxy
from tests.swarm.swarm import LoopThread, cut, even_parts, serving

pytestmark = pytest.mark.long

MODEL = Path(__file__).resolve().parents[2] / "models" / "kvasir-demo-moe.q4_k_m.gguf"
N_TOKENS = 6
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=N_TOKENS)


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedModel]:
    with LoadedModel.open(MODEL, n_slot=1, n_ctx=128, n_threads=1) as model:
        yield model


def write(loaded: LoadedModel, pool: EdgePool | NoWorkers) -> Generation:
    prompt = loaded.tokenizer.encode("The old dog was", add_special=True, parse_special=False)
    return generate(loaded, pool, [prompt], PARAMS)


def test_workers_behind_a_slow_network(loaded: LoadedModel, tmp_path: Path) -> None:
    holdings = [open_holdings(path, "auto", 1) for path in cut(MODEL, even_parts(16, 2), tmp_path)]
    with serving(holdings) as addresses:
        near, far = (WorkerAddress.parse(address) for address in addresses)
        with slow_proxy(far.host, far.port) as proxy:
            with EdgePool([near, WorkerAddress(far.host, proxy.port)], loaded.hello()) as pool:
                assert pool.problems == {}
                run = write(loaded, pool)
            assert proxy.n_bytes > 50_000
    assert first_difference(run, write(loaded, NoWorkers())) is None
    assert run.tally.n_fallback == 0
    assert run.seconds > N_TOKENS * 2 * 0.02  # the way there and back, at least


def test_workers_that_reach_the_relay_through_a_slow_network(loaded: LoadedModel, tmp_path: Path) -> None:
    slices = cut(MODEL, even_parts(16, 2), tmp_path)
    homes = [tmp_path / name for name in ("relay", "near", "far")]
    for home in homes:
        home.mkdir()
    with relay_process(homes[0]) as relay:
        port, token = int(relay.url.rsplit(":", 1)[1].split("/")[0]), relay.tokens[Role.WORKER]
        with (
            slow_proxy("127.0.0.1", port) as proxy,
            join_process(relay.url, token, slices[0], homes[1]) as near,
            join_process(f"ws://127.0.0.1:{proxy.port}/relay", token, slices[1], homes[2]) as far,
        ):
            assert (near.says()["event"], far.says()["event"]) == ("joined", "joined")
            hello = replace(loaded.hello(), token=relay.tokens[Role.BACKBONE])
            with EdgePool([], hello, relays=FixedDirectory({"relay": relay.url})) as pool:
                wait_live(pool, 2)
                run = write(loaded, pool)
            assert proxy.n_bytes > 50_000
    assert first_difference(run, write(loaded, NoWorkers())) is None
    assert run.tally.n_fallback == 0
    assert run.seconds > N_TOKENS * 2 * 0.02  # the way there and back, at least


def wait_live(pool: EdgePool, n_workers: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while len(pool.live()) < n_workers:
        assert time.monotonic() < until, pool.problems
        time.sleep(0.01)


def test_the_proxy_delays_paces_and_changes_nothing() -> None:
    data = bytes(range(256)) * 400

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while read := await reader.read(65_536):
            writer.write(read)
        writer.close()

    thread = LoopThread()
    server = thread.run(asyncio.start_server(echo, "127.0.0.1", 0))
    with slow_proxy("127.0.0.1", server.sockets[0].getsockname()[1], bytes_per_s=1e6) as proxy:

        async def there_and_back() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(data)
            back = await reader.readexactly(len(data))
            writer.close()
            return back

        started = time.monotonic()
        assert thread.run(there_and_back()) == data
        assert time.monotonic() - started >= 2 * 0.02 + len(data) / 1e6
        assert proxy.n_bytes == 2 * len(data)
    thread.loop.call_soon_threadsafe(server.close)
    thread.close()
