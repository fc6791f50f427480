"""The worker's slice store against a real slice server in this process, over a network that misbehaves."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvasir.errors import DownloadError
from kvasir.experts import ExpertRange
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.budget import WORKER_OVERHEAD_BYTES
from kvasir.slicing.slices import plan_slice
from kvasir.worker.agent.report import DownloadBar
from kvasir.worker.slices.cache import CacheFullError
from kvasir.worker.slices.http import SourceRefusedError
from kvasir.worker.slices.paths import DiskFullError, PartialFile
from kvasir.worker.slices.repair import BrokenSliceError
from kvasir.worker.slices.store import DoesNotFitError, HeldSlice, SliceStore
from tests.unit.moe_files import ModelSpec
from tests.unit.slice_site import ORIGIN, RANGES, SITE, Network, Site, make_site, store_at


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(tmp_path)


def obtain(store: SliceStore, site: Site, **options: object) -> HeldSlice:
    return asyncio.run(store.obtain(site.offer(), **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "spec",
    [ModelSpec(), ModelSpec(is_fused=True, has_bias=True), ModelSpec(has_bias=True), ModelSpec(tensors_per_part=7)],
    ids=["split", "fused-bias", "bias", "parts"],
)
def test_bytes_equal_the_written_slice(tmp_path: Path, spec: ModelSpec) -> None:
    site = make_site(tmp_path, spec)
    network = Network(site)
    store, _ = store_at(tmp_path / "cache", network)
    seen: list[tuple[int, int]] = []
    with obtain(store, site, progress=lambda done, total: seen.append((done, total))) as held:
        assert held.path.read_bytes() == site.expected
    assert seen[0] == (0, len(site.expected))
    assert seen[-1] == (len(site.expected), len(site.expected))
    assert sorted(seen) == seen


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 30_000), max_size=12))
def test_cuts_at_any_bytes_are_resumed_there(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    directory = tmp_path_factory.mktemp("cuts")
    site = make_site(directory)
    network = Network(site)
    network.cuts = iter(cut or 1 for cut in cuts)
    store, _ = store_at(directory / "cache", network)
    with obtain(store, site) as held:
        assert held.path.read_bytes() == site.expected
        assert held.n_repaired == 0
    assert network.bytes_from["site.test"] - len(site.expected) < 10_000  # the manifest, and no byte twice
    starts = [int(asked.removeprefix("bytes=").split("-")[0]) for asked in network.asked()]
    assert starts == sorted(set(starts))


def test_a_new_process_goes_on_at_the_byte(tmp_path: Path, site: Site) -> None:
    network = Network(site)
    network.cuts = iter([12_345, 1, 0, 0, 0, 0])
    store, _ = store_at(tmp_path / "cache", network)
    with pytest.raises(DownloadError, match="4 attempts in a row brought no byte"):
        obtain(store, site)
    (partial,) = (tmp_path / "cache").glob("*.partial")
    assert partial.stat().st_size == 12_346
    network = Network(site)
    site.restart()
    store, _ = store_at(tmp_path / "cache", network)
    with obtain(store, site) as held:
        assert held.path.read_bytes() == site.expected
    assert network.asked() == [f"bytes=12346-{len(site.expected) - 1}"]


def test_waits_double_and_follow_retry_after(tmp_path: Path, site: Site) -> None:
    network = Network(site)
    answers = iter([httpx.Response(503), httpx.Response(429, headers={"retry-after": "7"}), httpx.Response(500)])

    def fault(request: httpx.Request, body: bytes) -> bytes | httpx.Response:
        return next(answers, None) or body if "/slices/" in request.url.path else body

    network.fault = fault
    store, waited = store_at(tmp_path / "cache", network)
    obtain(store, site).release()
    assert waited == [0.5, 7.0, 2.0]


def test_only_broken_experts_are_fetched_again(tmp_path: Path, site: Site) -> None:
    network = Network(site)
    flipped: list[int] = []

    def fault(request: httpx.Request, body: bytes) -> bytes:
        if "/slices/" not in request.url.path or flipped:
            return body
        flipped.append(1)
        broken = bytearray(body)
        broken[-100] ^= 4
        return bytes(broken)

    network.fault = fault
    store, _ = store_at(tmp_path / "cache", network)
    with obtain(store, site) as held:
        assert held.path.read_bytes() == site.expected
        assert 0 < held.n_repaired <= site.card.expert_bytes(2)
    assert len(network.asked()) == 1 + 3  # gate, up and down of one expert


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(0, 390_000), max_size=5))
def test_bytes_broken_anywhere_are_mended(tmp_path_factory: pytest.TempPathFactory, places: set[int]) -> None:
    directory = tmp_path_factory.mktemp("noise")
    site = make_site(directory)
    network = Network(site)
    asked: list[str] = []

    def fault(request: httpx.Request, body: bytes) -> bytes:
        if "/slices/" not in request.url.path or asked:
            return body
        asked.append(request.headers["range"])
        broken = bytearray(body)
        for place in places:
            broken[place % len(body)] ^= 0x80
        return bytes(broken)

    network.fault = fault
    store, _ = store_at(directory / "cache", network)
    with obtain(store, site) as held:
        assert without_padding(site, held.path.read_bytes()) == without_padding(site, site.expected)
        assert held.n_repaired <= len(places) * site.card.expert_bytes(0) + 10_000


def without_padding(site: Site, data: bytes) -> bytes:
    """A slice's bytes but for those between its header and tensors, which nobody reads."""
    with GGUFIndex.open(site.model) as index:
        plan = plan_slice(index, site.card, RANGES)
    return data[: len(plan.header)] + b"".join(data[item.position : item.stop] for item in plan.byte_ranges)


def test_a_broken_header_is_mended(tmp_path: Path, site: Site) -> None:
    network = Network(site)
    bodies: list[int] = []

    def fault(request: httpx.Request, body: bytes) -> bytes:
        if "/slices/" in request.url.path and not bodies:
            bodies.append(1)
            return b"X" * 9 + body[9:]
        return body

    network.fault = fault
    store, _ = store_at(tmp_path / "cache", network)
    with obtain(store, site) as held:
        assert held.path.read_bytes() == site.expected


def test_bytes_that_stay_broken_never_get_the_name(tmp_path: Path, site: Site) -> None:
    network = Network(site)
    network.fault = lambda request, body: (
        body[:-50] + bytes(50) if "/slices/" in request.url.path and len(body) > 50 else body
    )
    store, _ = store_at(tmp_path / "cache", network)
    with pytest.raises(BrokenSliceError, match="do not match the manifest"):
        obtain(store, site)
    assert not list((tmp_path / "cache").glob("*.gguf"))
    network.fault = lambda request, body: body
    with obtain(store, site) as held:
        assert held.path.read_bytes() == site.expected


def test_a_cached_slice_needs_no_network_and_heals(tmp_path: Path, site: Site) -> None:
    store, _ = store_at(tmp_path / "cache", Network(site))
    held = obtain(store, site)
    held.release()
    network = Network(site)
    store, _ = store_at(tmp_path / "cache", network)
    obtain(store, site).release()
    assert network.requests == []
    with held.path.open("r+b") as file:
        file.seek(-200, os.SEEK_END)
        file.write(bytes(20))
    with obtain(store, site) as healed:
        assert healed.path.read_bytes() == site.expected
        assert healed.n_repaired > 0


def test_another_file_on_the_site_starts_the_slice_again(
    tmp_path: Path, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    network = Network(site)
    network.cuts = iter([9_000, 0, 0, 0, 0])
    store, _ = store_at(tmp_path / "cache", network)
    with pytest.raises(DownloadError):
        obtain(store, site)
    # the same model under the same fingerprint, but another header: what a newer server may send
    network.cuts = iter([])
    newer = {"etag": '"newer"'}

    def fault(request: httpx.Request, body: bytes) -> bytes | httpx.Response:
        if "/manifests/" in request.url.path:
            content = json.loads(body)
            content["slice"]["etag"] = newer["etag"]
            return json.dumps(content).encode()
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        span = {"content-range": f"bytes {first}-{last}/{len(site.expected)}"}
        return httpx.Response(206, headers=newer | span, content=site.expected[int(first) : int(last) + 1])

    network.fault = fault
    with obtain(store, site) as held:
        assert held.path.read_bytes() == site.expected
    assert "the download starts again" in caplog.text
    assert network.asked()[-1] == f"bytes=0-{len(site.expected) - 1}"


def test_a_slice_that_changes_all_the_time_is_given_up(tmp_path: Path, site: Site) -> None:
    network = Network(site)
    network.fault = lambda request, body: (
        httpx.Response(200, headers={"etag": '"other"'}) if "/slices/" in request.url.path else body
    )
    store, _ = store_at(tmp_path / "cache", network)
    with pytest.raises(DownloadError, match="changed this slice 3 times"):
        obtain(store, site)


class FullDisk(PartialFile):
    """Takes so many bytes and no more."""

    room = 20_000

    def _write(self, position: int, data: memoryview) -> int:
        if position >= self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super()._write(position, data[: self.room - position])


def test_a_full_disk_keeps_what_came(tmp_path: Path, site: Site) -> None:
    network = Network(site)
    store, _ = store_at(tmp_path / "cache", network, open_file=FullDisk)
    with pytest.raises(DiskFullError, match="no room for the rest of the slice"):
        obtain(store, site)
    store, _ = store_at(tmp_path / "cache", network)
    with obtain(store, site) as held:
        assert held.path.read_bytes() == site.expected
    assert network.asked()[-1].startswith("bytes=20000-")


def test_memory_is_asked_before_anything_is_fetched(tmp_path: Path, site: Site) -> None:
    network = Network(site)
    store, _ = store_at(tmp_path / "cache", network)
    needed = WORKER_OVERHEAD_BYTES + 4 * site.card.expert_bytes(0) + 2 * site.card.expert_bytes(2)
    with pytest.raises(DoesNotFitError, match=f"need {needed} bytes of memory"):
        obtain(store, site, memory_bytes=needed - 1)
    assert network.asked() == []
    obtain(store, site, memory_bytes=needed).release()


def test_the_cache_evicts_what_is_unused_longest(tmp_path: Path, site: Site) -> None:
    n_slice = len(site.expected)
    network = Network(site)
    store, _ = store_at(tmp_path / "cache", network, cache_bytes=int(2.3 * n_slice))
    offers = [site.offer((ExpertRange(layer, 0, 6),)) for layer in range(3)]
    sizes = [asyncio.run(store.obtain(offer)) for offer in offers[:2]]
    sizes[0].release()
    with asyncio.run(store.obtain(offers[2])) as third:
        assert third.path.exists()
        assert not sizes[0].path.exists()
        assert sizes[1].path.exists()  # it is in use
        with pytest.raises(CacheFullError, match="are in use"):
            asyncio.run(store.obtain(offers[0]))


def test_a_slice_in_use_is_shared(tmp_path: Path, site: Site) -> None:
    network = Network(site)
    one, _ = store_at(tmp_path / "cache", network)
    two, _ = store_at(tmp_path / "cache", network)
    with obtain(one, site) as first, obtain(two, site) as second:
        assert first.path == second.path
    assert len(network.asked()) == 1


def test_a_refusal_is_not_tried_again(tmp_path: Path, site: Site) -> None:
    network = Network(site)
    store, waited = store_at(tmp_path / "cache", network)
    offer = replace(site.offer(), manifest_url=site.url("manifests", (ExpertRange(9, 0, 1),)))
    with pytest.raises(SourceRefusedError, match="layer 9 has no experts"):
        asyncio.run(store.obtain(offer))
    assert waited == []


@pytest.mark.parametrize("location", ["http://other.test/x", "https://site.test/x", "http://site.test:81/x"])
def test_redirects_to_another_host_are_refused(tmp_path: Path, site: Site, location: str) -> None:
    network = Network(site)
    network.fault = lambda request, body: httpx.Response(302, headers={"location": location})
    store, _ = store_at(tmp_path / "cache", network)
    with pytest.raises(SourceRefusedError, match="redirect to another host"):
        obtain(store, site)
    assert len(network.requests) == 1


@pytest.mark.parametrize("fingerprint", ["../../elsewhere", "/etc/cron.d/x", "", "F" * 64, "f" * 64 + "\n"])
def test_a_fingerprint_that_is_none_names_no_file(tmp_path: Path, site: Site, fingerprint: str) -> None:
    network = Network(site)
    store, _ = store_at(tmp_path / "cache", network)
    with pytest.raises(DownloadError, match="64 hex digits"):
        asyncio.run(store.obtain(replace(site.offer(), fingerprint=fingerprint)))
    assert not network.requests
    assert list((tmp_path / "cache").iterdir()) == []


def test_redirects_on_the_same_host_are_followed(tmp_path: Path, site: Site) -> None:
    network = Network(site)
    network.fault = lambda request, body: (
        body if "r=1" in str(request.url) else httpx.Response(307, headers={"location": f"{request.url}&r=1"})
    )
    store, _ = store_at(tmp_path / "cache", network)
    with obtain(store, site) as held:
        assert held.path.read_bytes() == site.expected


@pytest.mark.parametrize("is_fused", [False, True])
def test_the_origin_gives_the_weights(tmp_path: Path, is_fused: bool) -> None:
    site = make_site(tmp_path, ModelSpec(is_fused=is_fused, has_bias=True), origin_url=ORIGIN)
    network = Network(site)
    store, _ = store_at(tmp_path / "cache", network)
    with obtain(store, site) as held:
        assert held.path.read_bytes() == site.expected
        assert held.n_repaired == 0
    assert len(network.asked()) == 1  # the header
    assert network.bytes_from["origin.test"] > 0.9 * len(site.expected)


@pytest.mark.parametrize("fault", ["gone", "other bytes", "no ranges", "other size", "cut"])
def test_the_site_helps_where_the_origin_does_not(tmp_path: Path, fault: str) -> None:
    site = make_site(tmp_path, origin_url=ORIGIN)
    network = Network(site)

    def spoil(request: httpx.Request, body: bytes) -> bytes | httpx.Response | Exception:
        if request.url.host != "origin.test":
            return body
        match fault:
            case "gone":
                return httpx.Response(404)
            case "other bytes":
                return bytes(len(body))
            case "no ranges":
                return httpx.Response(200, content=b"x" * 1_000_000)
            case "other size":
                return httpx.Response(206, headers={"content-range": "bytes 0-9/10"}, content=body)
        return httpx.ConnectError("no route")

    network.fault = spoil
    store, _ = store_at(tmp_path / "cache", network)
    with obtain(store, site) as held:
        assert held.path.read_bytes() == site.expected


def test_an_origin_that_turns_bad_later_is_mended_and_left(tmp_path: Path) -> None:
    site = make_site(tmp_path, origin_url=ORIGIN)
    network = Network(site)
    answers: list[int] = []

    def spoil(request: httpx.Request, body: bytes) -> bytes | Exception:
        if request.url.host != "origin.test":
            return body
        answers.append(1)
        if len(answers) == 5:
            return bytes(len(body))  # after the first expert was right
        return httpx.ReadTimeout("silence") if len(answers) > 6 else body

    network.fault = spoil
    store, _ = store_at(tmp_path / "cache", network)
    with obtain(store, site) as held:
        assert held.path.read_bytes() == site.expected
        assert held.n_repaired > 0
    assert len(answers) == 8


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("bytes", 10, "lie outside"),
        ("pieces", [[0, 10]], "overlap"),
        ("pieces", [[1, 2, 3]], "is not 2 numbers"),
        ("etag", "bare", "etag in quotes"),
        ("header_bytes", -1, "not a valid size or offset"),
    ],
)
def test_manifests_that_contradict_themselves_are_refused(
    tmp_path: Path, site: Site, key: str, value: object, reason: str
) -> None:
    network = Network(site)

    def fault(request: httpx.Request, body: bytes) -> bytes:
        content = json.loads(body)
        content["slice"][key] = value
        return json.dumps(content).encode()

    network.fault = fault
    store, _ = store_at(tmp_path / "cache", network)
    with pytest.raises(DownloadError, match=reason):
        obtain(store, site)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"format": "kvasir-manifest-1"}', b"\xff", b"[" * 100_000])
def test_what_is_no_manifest_is_refused(tmp_path: Path, site: Site, body: bytes) -> None:
    network = Network(site)
    network.fault = lambda request, _: httpx.Response(200, content=body)
    store, _ = store_at(tmp_path / "cache", network)
    with pytest.raises(DownloadError, match="manifest cannot be used"):
        obtain(store, site)


def test_cancelling_keeps_what_came(tmp_path: Path, site: Site) -> None:
    network = Network(site)
    store, _ = store_at(tmp_path / "cache", network)

    async def cancel_midway() -> None:
        task = asyncio.ensure_future(store.obtain(site.offer()))
        network.fault = lambda request, body: (task.cancel(), body)[1] if "/slices/" in request.url.path else body
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel_midway())
    network.fault = lambda request, body: body
    with obtain(store, site) as held:
        assert held.path.read_bytes() == site.expected


def test_the_token_goes_to_the_site_alone(tmp_path: Path) -> None:
    site = make_site(tmp_path, origin_url=ORIGIN)
    network = Network(site)
    store, _ = store_at(tmp_path / "cache", network)
    obtain(store, site).release()
    assert {request.url.host for request in network.requests} == {"site.test", "origin.test"}
    assert all(("authorization" in r.headers) == (str(r.url).startswith(SITE)) for r in network.requests)


def test_the_bar_shows_bytes_that_are_there() -> None:
    shown = io.StringIO()
    with DownloadBar("slice", shown, is_shown=True) as bar:
        bar.report(3 << 20, 4 << 20)
        bar.report(4 << 20, 4 << 20)
    last = shown.getvalue().split("\r")[-1]
    assert "100%" in last
    assert "4.00M/4.00M" in last
    silent = io.StringIO()
    with DownloadBar("slice", silent) as bar:
        bar.report(1, 2)
    assert silent.getvalue() == ""
