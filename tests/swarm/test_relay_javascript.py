"""Python's backbone and the pages' worker through a real relay: every row and every output arrives as it was sent.

JavaScript has 32-bit shifts and signed bit operations: its codecs go wrong at lengths around 64 KiB and above.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import pytest

from kvasir.errors import EdgeError
from kvasir.kernels.api import RowFormat
from kvasir.kernels.sums import sum_outputs
from kvasir.relay.edge import RelayEdge, RelayEdges
from kvasir.relay.records import RECORD_BYTES
from kvasir.wire.frames import Hello, Role, SumOrder
from kvasir.wire.header import HEADER_BYTES, encoded_row_bytes
from kvasir.wire.split import ExpertCall
from tests.swarm.cutting_proxy import CuttingProxy
from tests.swarm.relay_process import KERNEL, MODEL, RelayProcess, sandbox
from tests.swarm.tab_process import D_MODEL, EXPERTS, PATIENCE_S, TabProcess
from tests.swarm.test_relay_frames import LENGTHS

ROW_BYTES = encoded_row_bytes(RowFormat.KX1, D_MODEL)
Rows = npt.NDArray[np.uint8]
Pairs = npt.NDArray[np.int32]


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with sandbox(tmp_path_factory) as process:
        yield process


@asynccontextmanager
async def backbone(relay: RelayProcess) -> AsyncIterator[asyncio.Queue[RelayEdge]]:
    """A backbone at the relay, and the edges that open to it."""
    hello = Hello(Role.BACKBONE, MODEL, KERNEL, "kx1", token=relay.tokens[Role.BACKBONE])
    opened: asyncio.Queue[RelayEdge] = asyncio.Queue()
    edges = await RelayEdges.connect(relay.url, hello, opened.put_nowait, deadline_s=PATIENCE_S)
    try:
        yield opened
    finally:
        await edges.close()


async def next_edge(opened: asyncio.Queue[RelayEdge]) -> RelayEdge:
    return await asyncio.wait_for(opened.get(), PATIENCE_S)


def asked(n_rows: int, n_pairs: int, layer: int) -> tuple[Rows, Pairs, Pairs]:
    """Rows of noise, and pairs that name rows and experts at random."""
    chance = np.random.default_rng(n_rows + n_pairs)
    rows = chance.integers(0, 256, (n_rows, ROW_BYTES), np.uint8)
    pair_rows = chance.integers(0, n_rows, n_pairs, np.int32)
    return rows, pair_rows, chance.integers(0, len(EXPERTS[layer]), n_pairs, np.int32)


def expected(rows: Rows, pair_rows: Pairs, pair_ids: Pairs, layer: int) -> npt.NDArray[np.float32]:
    """What the kernel of `relay_tab.mjs` computes."""
    codes = rows.reshape(len(rows), -1, 261)[:, :, :256].reshape(len(rows), D_MODEL)
    experts = np.array(EXPERTS[layer], np.float32)[pair_ids]
    return codes[pair_rows].astype(np.float32) + 1000 * experts[:, None]


async def exchange(edge: RelayEdge, n_rows: int, n_pairs: int, *, layer: int = 2) -> int:
    """Dispatch and compare; returns the bytes of the frame that went out."""
    before = edge.bytes_sent
    rows, pair_rows, pair_ids = asked(n_rows, n_pairs, layer)
    outputs = await edge.dispatch(ExpertCall(layer, rows, RowFormat.KX1, pair_rows, pair_ids), PATIENCE_S)
    assert outputs.tobytes() == expected(rows, pair_rows, pair_ids, layer).tobytes()
    return edge.bytes_sent - before - RECORD_BYTES


async def exchange_sums(edge: RelayEdge, n_rows: int, pairs_of_row: int, *, layer: int = 2) -> int:
    """Dispatch for sums and compare; returns the bytes of the answers that came back."""
    rows, _, pair_ids = asked(n_rows, n_rows * pairs_of_row, layer)
    pair_rows = np.repeat(np.arange(n_rows, dtype=np.int32), pairs_of_row)
    chance = np.random.default_rng(n_rows)
    weights = (chance.random(len(pair_rows)) * 2.0 ** chance.integers(-20, 1, len(pair_rows))).astype(np.float32)
    order = SumOrder(weights, chance.integers(-12, 8, n_rows, np.int32))
    before = edge.bytes_received
    sums = await edge.dispatch(ExpertCall(layer, rows, RowFormat.KX1, pair_rows, pair_ids, order), PATIENCE_S)
    wanted = sum_outputs(expected(rows, pair_rows, pair_ids, layer), weights, pair_rows, order.exponents)
    assert sums.any()
    assert sums.tobytes() == wanted.tobytes()
    return edge.bytes_received - before


def shape_of(payload_bytes: int) -> tuple[int, int]:
    """Rows and pairs of a dispatch with a payload of exactly that many bytes."""
    n_rows = (payload_bytes - 8) // ROW_BYTES
    while (payload_bytes - n_rows * ROW_BYTES) % 8:
        n_rows -= 1
    return n_rows, (payload_bytes - n_rows * ROW_BYTES) // 8


@pytest.mark.parametrize("whole", [False, True], ids=["payload", "frame"])
def test_frames_of_every_length_are_computed_in_javascript(relay: RelayProcess, whole: bool, tmp_path: Path) -> None:
    payloads = [n - HEADER_BYTES * whole for n in LENGTHS if n > 2 * ROW_BYTES]

    async def scenario() -> None:
        async with TabProcess(relay, tmp_path / "errors"), backbone(relay) as opened:
            edge = await next_edge(opened)
            assert [(r.layer, r.start, r.stop) for r in edge.coverage] == [(2, 4, 8), (2, 12, 16), (5, 0, 2)]
            for payload_bytes in payloads:
                assert await exchange(edge, *shape_of(payload_bytes)) == HEADER_BYTES + payload_bytes

    asyncio.run(scenario())


def test_answers_of_every_size_come_back_whole(relay: RelayProcess, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with TabProcess(relay, tmp_path / "errors"), backbone(relay) as opened:
            edge = await next_edge(opened)
            for n_pairs in (1, 12, 13, 204, 205, 1638):  # 8 MiB hold 1638 rows
                await exchange(edge, 3, n_pairs)
            await exchange(edge, 300, 4000)  # more than a frame holds: split, and put together again

    asyncio.run(scenario())


def test_sums_are_those_of_the_native_worker_to_the_bit(relay: RelayProcess, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with TabProcess(relay, tmp_path / "errors"), backbone(relay) as opened:
            edge = await next_edge(opened)
            for n_rows, pairs_of_row in ((1, 1), (1, 31), (40, 8), (900, 3), (2000, 2)):  # the last in several frames
                n_bytes = await exchange_sums(edge, n_rows, pairs_of_row)
                assert n_bytes < n_rows * (4 * D_MODEL + D_MODEL // 256) + 4096
            await asyncio.gather(*(exchange_sums(edge, 1 + n, 4, layer=2) for n in range(12)), exchange(edge, 3, 20))

    asyncio.run(scenario())


def test_many_dispatches_under_way_keep_their_answers(relay: RelayProcess, tmp_path: Path) -> None:
    async def scenario() -> None:
        chance = random.Random(3)
        async with TabProcess(relay, tmp_path / "errors"), backbone(relay) as one, backbone(relay) as two:
            edges = [await next_edge(one), await next_edge(two)]
            await asyncio.gather(
                *(
                    exchange(edges[n % 2], chance.randint(1, 40), chance.randint(1, 90), layer=chance.choice((2, 5)))
                    for n in range(80)
                )
            )

    asyncio.run(scenario())


def test_a_pause_keeps_work_away_and_a_goodbye_is_in_order(relay: RelayProcess, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with TabProcess(relay, tmp_path / "errors") as tab, backbone(relay) as opened:
            edge = await next_edge(opened)
            tab.tell("pause")
            async with asyncio.timeout(PATIENCE_S):
                while edge.is_available:
                    await asyncio.sleep(0.01)
            with pytest.raises(EdgeError, match="it asked for a pause"):
                await exchange(edge, 1, 1)
            tab.tell("resume")
            async with asyncio.timeout(PATIENCE_S):
                while not edge.is_available:
                    await asyncio.sleep(0.01)
            await exchange(edge, 1, 1)
            tab.tell("stop")
            await asyncio.wait_for(edge.closed, PATIENCE_S)
            await tab.said("ended")
            assert await asyncio.wait_for(tab.process.wait(), PATIENCE_S) == 0

    asyncio.run(scenario())


def test_a_network_that_is_cut_is_back_by_itself(relay: RelayProcess, tmp_path: Path) -> None:
    async def scenario() -> None:
        address = urlsplit(relay.url)
        assert address.hostname is not None and address.port is not None
        async with CuttingProxy((address.hostname, address.port)) as proxy:
            url = proxy.url.replace("http", "ws") + address.path
            async with TabProcess(relay, tmp_path / "errors", url) as tab, backbone(relay) as opened:
                for _ in range(2):
                    await tab.said("joined")
                    edge = await next_edge(opened)
                    await exchange(edge, 2, 3)
                    proxy.break_all()
                    await tab.said("lost")
                    await asyncio.wait_for(edge.closed, PATIENCE_S)
                await exchange(await next_edge(opened), 2, 3)

    asyncio.run(scenario())
