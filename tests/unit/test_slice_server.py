"""The slice server's answers, through ASGI alone: what Daphne adds is tested with real processes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvasir.experts import ExpertRange
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.manifest import Manifest
from relay.slices.limits import BusyError, DownloadBook, SliceLimits, Throttle
from relay.slices.manifests import part_urls
from relay.slices.planning import PLANS_KEPT, SliceShelf
from relay.slices.sending import Exchange
from tests.unit.moe_files import ModelSpec, write_model
from tests.unit.slice_site import ORIGIN, RANGES, SITE, TOKEN, Site, make_site

SPANS = [(start, stop) for start in range(6) for stop in range(start + 1, 7)]  # of six experts


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(tmp_path)


def ask(site: Site, url: str, method: str = "GET", **headers: str) -> httpx.Response:
    async def send() -> httpx.Response:
        async with site.client() as client:
            return await client.request(method, url, headers=headers)

    return asyncio.run(send())


def test_the_whole_slice(site: Site) -> None:
    answer = ask(site, site.url())
    assert (answer.status_code, answer.content) == (200, site.expected)
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-length"] == str(len(site.expected))
    assert answer.headers["etag"].startswith('"')


def test_a_head_has_the_length_and_no_body(site: Site) -> None:
    answer = ask(site, site.url(), "HEAD", range="bytes=0-1")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == str(len(site.expected))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_range_of_any_layout(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    spec = data.draw(st.sampled_from([ModelSpec(), ModelSpec(is_fused=True, has_bias=True)]))
    site = make_site(tmp_path_factory.mktemp("site"), spec)
    start = data.draw(st.integers(0, len(site.expected) - 1))
    stop = data.draw(st.integers(start + 1, len(site.expected)))
    answer = ask(site, site.url(), range=f"bytes={start}-{stop - 1}")
    assert (answer.status_code, answer.content) == (206, site.expected[start:stop])
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(site.expected)}"


def test_conditions(site: Site) -> None:
    etag = ask(site, site.url(), "HEAD").headers["etag"]
    part = {"range": "bytes=0-9"}
    assert ask(site, site.url(), **part, **{"if-range": etag}).status_code == 206
    assert ask(site, site.url(), **part, **{"if-range": '"x"'}).content == site.expected
    unchanged = ask(site, site.url(), **{"if-none-match": etag})
    assert (unchanged.status_code, unchanged.content, unchanged.headers["etag"]) == (304, b"", etag)
    assert ask(site, site.url(), **{"if-match": '"x"'}).status_code == 412
    beyond = ask(site, site.url(), range="bytes=999999999-")
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(site.expected)}")


def test_the_tag_follows_experts_and_model_but_no_restart(tmp_path: Path, site: Site) -> None:
    etag = ask(site, site.url(), "HEAD").headers["etag"]
    site.restart()
    assert ask(site, site.url(), "HEAD").headers["etag"] == etag
    shuffled = f"{SITE}/api/slices/{site.card.fingerprint}?experts=2:0-2,0:4-6,0:1-2,0:2-3"
    assert ask(site, shuffled, "HEAD").headers["etag"] == etag
    assert ask(site, site.url(ranges=RANGES[:1]), "HEAD").headers["etag"] != etag
    (tmp_path / "other").mkdir()
    other = make_site(tmp_path / "other", ModelSpec(seed=1))
    assert ask(other, other.url(), "HEAD").headers["etag"] != etag


@pytest.mark.parametrize(
    ("experts", "reason"),
    [
        ("", "name the experts once"),
        ("?experts=0:0-1&experts=1:0-1", "name the experts once"),
        ("?experts=nonsense", "is not LAYER:START-STOP"),
        ("?experts=0:4-4", "is empty"),
        ("?experts=9:0-1", "layer 9 has no experts"),
        ("?experts=0:0-7", "stop may be at most 6"),
        ("?experts=" + ",".join(["0:0-1"] * 2000), "characters"),
        ("?" + "a&" * 500 + "experts=0:0-1", "name the experts once"),
    ],
)
def test_bad_experts_are_refused_with_the_reason(site: Site, experts: str, reason: str) -> None:
    answer = ask(site, f"{SITE}/api/slices/{site.card.fingerprint}{experts}")
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]


def test_other_models_methods_and_tokens(site: Site) -> None:
    unknown = ask(site, f"{SITE}/api/slices/{'0' * 64}?experts=0:0-1")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model")
    posted = ask(site, site.url(), "POST")
    assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")
    for wrong in ("", "Bearer nobody", f"Basic {TOKEN}", TOKEN):
        refused = ask(site, site.url("manifests"), authorization=wrong)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert ask(site, f"{SITE}/elsewhere").content == b"pages"
    assert ask(site, f"{SITE}/api/slices/a/b").content == b"pages"


def test_the_manifest_is_that_of_the_command(site: Site) -> None:
    content = ask(site, site.url("manifests")).json()
    with GGUFIndex.open(site.model) as index:
        assert Manifest.from_content(content, "") == Manifest.of_model(index, site.card, RANGES)
    assert content["slice"]["bytes"] == len(site.expected)
    assert f"{SITE}{content['slice']['url']}" == site.url()
    assert "origin" not in content


def test_hashes_are_kept_between_starts_but_not_for_another_file(tmp_path: Path, site: Site) -> None:
    first = ask(site, site.url("manifests")).json()
    for saved in (tmp_path / "manifests").rglob("*.json"):
        saved.write_text(saved.read_text().replace('"0/1"', '"0/3"'))
    site.restart()
    kept = ask(site, site.url("manifests", (ExpertRange(0, 3, 4),))).json()
    assert kept["experts"]["0/3"] == first["experts"]["0/1"]  # what the (doctored) file says: it was not hashed again
    site.model.touch()
    again = ask(site, site.url("manifests")).json()
    assert again == first


def test_saved_hashes_that_cannot_be_read_are_computed_again(tmp_path: Path, site: Site) -> None:
    first = ask(site, site.url("manifests")).json()
    for saved in (tmp_path / "manifests").rglob("*.json"):
        saved.write_text("nonsense")
    site.restart()
    assert ask(site, site.url("manifests")).json() == first


def test_the_origin_names_the_same_bytes(tmp_path: Path) -> None:
    site = make_site(tmp_path, origin_url=ORIGIN)
    content = ask(site, site.url("manifests")).json()
    file = site.model.read_bytes()
    assert content["origin"]["url"] == ORIGIN
    for (position, n_bytes), (offset, n_there) in zip(
        content["slice"]["pieces"], content["origin"]["ranges"], strict=True
    ):
        assert n_bytes == n_there
        assert file[offset : offset + n_bytes] == site.expected[position : position + n_bytes]


def test_addresses_of_split_models() -> None:
    assert part_urls("https://host/m.gguf", 1) == ["https://host/m.gguf"]
    first = "https://host/m-00001-of-00003.gguf"
    assert part_urls(first, 3) == [first, first.replace("00001", "00002"), first.replace("00001", "00003")]


def test_a_replaced_model_is_opened_anew(tmp_path: Path, site: Site) -> None:
    assert ask(site, site.url()).status_code == 200
    write_model(tmp_path / "new.gguf", ModelSpec(seed=5)).replace(site.model)
    assert ask(site, site.url()).status_code == 404
    site.model.unlink()
    gone = ask(site, site.url())
    assert (gone.status_code, gone.json()["error"]["code"]) == (503, "unreadable")


def test_plans_are_kept_while_they_are_asked_for(site: Site) -> None:
    shelf = SliceShelf(site.model)
    often = shelf.planned(site.card.fingerprint, "0:0-6")
    once = shelf.planned(site.card.fingerprint, "0:0-5")
    for number in range(PLANS_KEPT - 1):
        (start, stop), (first, last) = SPANS[number // 21], SPANS[number % 21]
        shelf.planned(site.card.fingerprint, f"1:{start}-{stop},2:{first}-{last}")
        assert shelf.planned(site.card.fingerprint, "0:0-6") is often
    assert shelf.planned(site.card.fingerprint, "0:0-5") is not once


def test_no_model_is_a_404(site: Site) -> None:
    site.server._parts = replace(site.server._parts, shelf=SliceShelf(None))
    assert ask(site, site.url()).json()["error"]["message"] == "this site serves no model"


def test_a_client_that_leaves_ends_the_sending(site: Site) -> None:
    async def leave() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        left = asyncio.Event()
        asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> dict[str, Any]:
            for message in asked:
                return message
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if len(sent) == 3:
                left.set()
                await asyncio.sleep(0)
                await asyncio.sleep(0)

        scope = {
            "type": "http", "method": "GET", "path": f"/api/slices/{site.card.fingerprint}",
            "query_string": b"experts=0:0-6,1:0-6,2:0-6", "headers": [(b"authorization", f"Bearer {TOKEN}".encode())],
        }  # fmt: skip
        await site.server(scope, receive, send)  # type: ignore[arg-type]
        return sent

    sent = asyncio.run(leave())
    assert len(sent) in (3, 4)
    assert sent[-1]["more_body"]


def test_a_node_has_so_many_downloads() -> None:
    book = DownloadBook(SliceLimits(downloads_per_node=2, downloads=3, requests=1), lambda: 0.0)
    with book.download("a"), book.download("a"):
        with pytest.raises(BusyError, match="2 downloads") as refusal, book.download("a"):
            pass
        assert refusal.value.status == 429
        with (
            book.download("b"),
            pytest.raises(BusyError, match="this site's limit") as refusal,
            book.download("c"),
        ):
            pass
        assert refusal.value.status == 503
    with book.download("a"), book.request(), pytest.raises(BusyError), book.request():
        pass


def test_busy_is_said_with_a_time(tmp_path: Path) -> None:
    site = make_site(tmp_path, limits=SliceLimits(downloads_per_node=0))
    answer = ask(site, site.url())
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")


def test_an_address_that_asks_too_often_is_told_so_before_its_token_is_looked_at(site: Site) -> None:
    async def wait_of(scope: Any) -> float:
        return 1.2

    async def check_token(text: str) -> Any:
        raise AssertionError("nobody asks for the token")

    site.server._parts = replace(site.server._parts, wait_of=wait_of, check_token=check_token)
    answer = ask(site, site.url())
    assert (answer.status_code, answer.headers["retry-after"], answer.json()["error"]["code"]) == (429, "2", "busy")


def test_sending_waits_for_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site(tmp_path, limits=SliceLimits(bytes_per_s=40_000))
    waited: list[float] = []

    async def wait(exchange: Exchange, seconds: float) -> None:
        waited.append(seconds)
        site.now += seconds

    monkeypatch.setattr(Exchange, "wait", wait)
    assert ask(site, site.url()).content == site.expected
    assert sum(waited) == pytest.approx(len(site.expected) / 40_000, abs=10_000 / 40_000)


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 2)), max_size=30))
def test_a_throttle_never_gives_more_than_its_rate(asked: list[tuple[int, float]]) -> None:
    now = sent = 0.0
    throttle = Throttle(1000, lambda: now)
    for n_bytes, later in asked:
        now += later
        now += throttle.wait_s(n_bytes)
        assert sent <= 1000 * now + 1e-6
        sent += n_bytes
    assert Throttle(0, lambda: 0.0).wait_s(10**12) == 0.0


def test_a_slow_node_stays_slow_over_its_downloads() -> None:
    book = DownloadBook(SliceLimits(bytes_per_s=1000), lambda: 5.0)
    with book.download("a") as throttle:
        assert throttle.wait_s(500) == 0.0
    with book.download("a") as throttle:
        assert throttle.wait_s(500) == pytest.approx(0.5)
    with book.download("b") as throttle:
        assert throttle.wait_s(500) == 0.0
