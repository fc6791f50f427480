"""Slices over HTTP between real processes: the site's Daphne, the worker's store, and a line that breaks."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from kvasir.experts import ExpertRange
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slices import plan_slice, write_slice
from kvasir.wire.frames import Role
from kvasir.worker.slices.download import Patience
from kvasir.worker.slices.http import SourceRefusedError, make_client
from kvasir.worker.slices.paths import DiskFullError
from kvasir.worker.slices.store import HeldSlice, SliceOffer, SliceStore, StoreOptions
from tests.swarm.cutting_proxy import CuttingProxy
from tests.swarm.relay_process import ROOT, RelayProcess, relay_process
from tests.unit.moe_files import ModelSpec, write_model

SPEC = ModelSpec(n_layer=2, n_expert=16, d_model=512, d_ff=512)  # 27 MB of experts: more than sockets hold
RANGES = (ExpertRange(0, 1, 15), ExpertRange(1, 0, 16))
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Site:
    model: Path
    card: ModelCard
    written: Path  # by write_slice
    relay: RelayProcess

    @property
    def address(self) -> tuple[str, int]:
        match = re.match(r"ws://([\d.]+):(\d+)", self.relay.url)
        assert match is not None
        return match[1], int(match[2])

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    @property
    def token(self) -> str:
        return self.relay.tokens[Role.WORKER]

    def path(self, what: str = "slices") -> str:
        experts = ",".join(f"{item.layer}:{item.start}-{item.stop}" for item in RANGES)
        return f"/api/{what}/{self.card.fingerprint}?experts={experts}"

    def offer(self, base: str = "") -> SliceOffer:
        return SliceOffer.at(base or self.url, self.card.fingerprint, RANGES)

    def client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=PATIENCE_S)

    def raw_request(self) -> socket.socket:
        """A socket on which the slice was asked for and nothing read yet."""
        plain = socket.create_connection(self.address, PATIENCE_S)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        head = f"GET {self.path()} HTTP/1.1\r\nHost: site\r\nAuthorization: Bearer {self.token}\r\n\r\n"
        plain.sendall(head.encode())
        plain.recv(1, socket.MSG_PEEK)
        return plain


@contextmanager
def site_at(directory: Path, model: Path | None = None, **environment: str) -> Iterator[Site]:
    directory.mkdir(exist_ok=True)
    model = model or write_model(directory / "model.gguf", SPEC)
    with GGUFIndex.open(model) as index:
        card = ModelCard.from_index(index)
        write_slice(plan_slice(index, card, RANGES), directory / "written.gguf")
    options = {"KVASIR_MODEL": str(model), "KVASIR_RUN_DIR": str(directory / "run"), **environment}
    with relay_process(directory, 0, **options) as relay:
        yield Site(model, card, directory / "written.gguf", relay)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_at(tmp_path_factory.mktemp("site"), KVASIR_SLICE_DOWNLOADS="8") as made:
        yield made


async def fetch(site: Site, cache: Path, offer: SliceOffer, attempts: int = 8) -> HeldSlice:
    patience = Patience(attempts=attempts, first_s=0.01, longest_s=0.2)
    async with make_client() as client:
        store = SliceStore(cache, client, site.token, StoreOptions(cache_bytes=1 << 30, patience=patience))
        async with asyncio.timeout(PATIENCE_S):
            return await store.obtain(offer)


def test_eight_clients_at_once_get_the_written_bytes(tmp_path: Path, site: Site) -> None:
    async def all_of_them() -> list[HeldSlice]:
        return await asyncio.gather(*(fetch(site, tmp_path / str(n), site.offer()) for n in range(8)))

    expected = site.written.read_bytes()
    for held in asyncio.run(all_of_them()):
        with held:
            assert held.path.read_bytes() == expected
            assert held.n_repaired == 0


def test_cuts_at_arbitrary_bytes(tmp_path: Path, site: Site) -> None:
    async def through_cuts() -> tuple[HeldSlice, int]:
        async with CuttingProxy(site.address) as proxy:
            # within heads, at the first byte of a body, and anywhere
            proxy.cuts = iter([1, 200, 3_000, 300_001, 65_536, 1_234_567, 5_000_000, 150, 7_654_321])
            held = await fetch(site, tmp_path, site.offer(proxy.url))
            return held, proxy.n_connections

    held, n_connections = asyncio.run(through_cuts())
    with held:
        assert held.path.read_bytes() == site.written.read_bytes()
        assert held.n_repaired == 0
    assert n_connections == 10


def test_corrupted_bytes_are_fetched_again(tmp_path: Path, site: Site) -> None:
    async def through_noise() -> HeldSlice:
        async with CuttingProxy(site.address) as proxy:
            changed: list[int] = []

            def change(position: int, data: bytes) -> bytes:
                if position < 5_000_000 or changed:
                    return data
                changed.append(position)
                return bytes([data[0] ^ 1]) + data[1:]

            proxy.change = change
            return await fetch(site, tmp_path, site.offer(proxy.url))

    with asyncio.run(through_noise()) as held:
        assert held.path.read_bytes() == site.written.read_bytes()
        assert 0 < held.n_repaired <= site.card.expert_bytes(0)


def test_a_limit_of_the_disk_is_a_clear_error_and_resumed(tmp_path: Path, site: Site) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, before[1]))
    try:
        with pytest.raises(DiskFullError, match="no room for the rest of the slice"):
            asyncio.run(fetch(site, tmp_path, site.offer()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (partial,) = tmp_path.glob("*.partial")
    assert partial.stat().st_size == 3_000_000
    with asyncio.run(fetch(site, tmp_path, site.offer())) as held:
        assert held.path.read_bytes() == site.written.read_bytes()


def test_a_server_killed_midway_is_resumed_after_its_restart(tmp_path: Path) -> None:
    async def through_restart(first: Site, second: Site) -> HeldSlice:
        async with CuttingProxy(first.address) as proxy:
            half, refused = asyncio.Event(), asyncio.Event()
            proxy.passed = lambda: half.set() if proxy.n_answer_bytes > 8_000_000 else None
            proxy.refused = refused.set
            fetching = asyncio.ensure_future(fetch(first, tmp_path / "cache", first.offer(proxy.url), attempts=10_000))
            await half.wait()
            first.relay.process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(first.relay.process.wait)
            await refused.wait()  # nobody listens for a while
            proxy.target = second.address
            return await fetching

    with site_at(tmp_path / "site") as first, site_at(tmp_path / "site", first.model) as second:
        held = asyncio.run(through_restart(first, second))
    with held:
        assert held.path.read_bytes() == first.written.read_bytes()
        assert held.n_repaired == 0


def test_a_model_that_is_not_served_any_more_is_named(tmp_path: Path, site: Site) -> None:
    with pytest.raises(SourceRefusedError, match=f"is not served here; {site.card.fingerprint} is"):
        asyncio.run(fetch(site, tmp_path, SliceOffer.at(site.url, "0" * 64, RANGES)))


def test_answers_of_all_kinds_on_one_connection(site: Site) -> None:
    expected = site.written.read_bytes()
    with site.client() as client:
        head = client.head(site.path())
        assert (head.content, head.headers["content-length"]) == (b"", str(len(expected)))
        part = client.get(site.path(), headers={"range": "bytes=1000-2000000"})
        assert (part.status_code, part.content) == (206, expected[1000:2_000_001])
        assert client.get(site.path(), headers={"if-none-match": head.headers["etag"]}).status_code == 304
        assert client.get(site.path(), headers={"range": "bytes=99999999-"}).status_code == 416
        assert client.get(site.path()).content == expected
        assert client.get(site.path("manifests")).json()["slice"]["etag"] == head.headers["etag"]
        assert client.get("/nowhere").status_code == 404
        assert client.get(site.path(), headers={"range": "bytes=-1"}).content == expected[-1:]


def test_clients_that_do_not_read_cost_no_memory(site: Site) -> None:
    process = psutil.Process(site.relay.process.pid)
    with site.client() as client:
        client.get(site.path())
        before = process.memory_info().rss
        stalled = [site.raw_request() for _ in range(7)]
        assert client.get(site.path(), headers={"range": "bytes=0-99"}).status_code == 206
        assert process.memory_info().rss - before < 4_000_000
        busy = [site.raw_request()]
        assert client.get(site.path()).status_code == 429
        for each in stalled + busy:
            each.close()
        assert until_free(client, site).content == site.written.read_bytes()


def until_free(client: httpx.Client, site: Site) -> httpx.Response:
    """Ask until the places of clients that left are free."""
    deadline = time.monotonic() + PATIENCE_S
    while (answer := client.get(site.path())).status_code == 429 and time.monotonic() < deadline:
        pass
    return answer


def test_a_model_that_is_truncated_midway_ends_the_answer(tmp_path: Path) -> None:
    with site_at(tmp_path) as site:
        plain = site.raw_request()
        os.truncate(site.model, 1_000_000)
        received = 0  # and then the end, not silence
        while data := plain.recv(1 << 20):
            received += len(data)
        plain.close()
        assert received < site.written.stat().st_size
        with site.client() as client:
            assert client.get(site.path()).status_code == 503


def test_streams_of_pages_wait_for_their_clients() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.swarm.streaming_site"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            plain.sendall(b"GET /stream HTTP/1.0\r\n\r\n")
            plain.recv(1, socket.MSG_PEEK)
            url = f"http://127.0.0.1:{port}/count"
            assert int(httpx.get(url, trust_env=False).text) < 32
            assert psutil.Process(process.pid).memory_info().rss < 200_000_000
            received = 0
            while data := plain.recv(1 << 20):
                received += len(data)
        assert received > 256 << 20
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        if process.stdout is not None:
            process.stdout.close()
