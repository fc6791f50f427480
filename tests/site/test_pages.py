"""The frame of all pages: they answer, their policy is strict, files come with the right types, in two languages."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient, override_settings

from frontend.content_policy import content_policy, worker_policy
from frontend.static_files import TYPES
from tests.site.database import database_at
from tests.site.market_site import run

PAGES = ("/", "/contribute", "/dashboard", "/playground", "/rewards")
STATIC = Path(__file__).resolve().parents[2] / "frontend/static/kvasir"
SHADERS = Path(__file__).resolve().parents[2] / "kvasir/kernels/wgsl"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@pytest.fixture(scope="module", autouse=True)
def _database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with (
        database_at(tmp_path_factory.mktemp("pages") / "pages.sqlite3"),
        override_settings(ALLOWED_HOSTS=["testserver"]),
    ):
        yield


def ask(path: str, method: str = "get", data: Any = None, **headers: str) -> Reply:
    async def whole() -> Reply:
        try:
            client = AsyncClient(raise_request_exception=False, enforce_csrf_checks=True)
            response: Any = await getattr(client, method)(path, data, headers=headers)
            return Reply(response.status_code, dict(response.headers), response.content)
        finally:
            await sync_to_async(connections.close_all)()

    return run(whole())


class Outline(HTMLParser):
    """What a page refers to, and what a strict policy would refuse in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.files: list[str] = []
        self.refused: list[str] = []
        self.importmap = ""
        self._script: dict[str, str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.refused += [f"{tag} {name}" for name in found if name == "style" or name.startswith("on")]
        self.refused += [tag] if tag == "style" else []
        self._script = found if tag == "script" else None
        address = found.get("src") or (found.get("href") if tag == "link" else None)
        if address:
            self.files.append(address)

    def handle_data(self, data: str) -> None:
        if self._script is None or not data.strip():
            return
        if self._script.get("type") == "importmap":
            self.importmap = data
        elif self._script.get("type") != "application/json":
            self.refused.append("inline script")

    def handle_endtag(self, tag: str) -> None:
        self._script = None


def directives(reply: Reply) -> dict[str, list[str]]:
    parts = [part.split() for part in reply.headers["Content-Security-Policy"].split("; ")]
    return {name: sources for name, *sources in parts}


@pytest.mark.parametrize("path", PAGES)
def test_a_page_obeys_its_own_policy(path: str) -> None:
    reply = ask(path)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    outline = Outline(reply.text)
    assert outline.refused == []
    digest = base64.b64encode(hashlib.sha256(outline.importmap.encode()).digest()).decode()
    policy = directives(reply)
    assert policy["script-src"] == ["'self'", "'wasm-unsafe-eval'", f"'sha256-{digest}'"]
    assert (policy["default-src"], policy["style-src"], policy["frame-ancestors"]) == (
        ["'none'"],
        ["'self'"],
        ["'none'"],
    )
    assert reply.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", PAGES)
def test_everything_a_page_refers_to_is_there(path: str) -> None:
    outline = Outline(ask(path).text)
    assert [name for name in outline.files if not name.startswith("/")] == []
    assert {name: status for name in outline.files if (status := ask(name).status) != 200} == {}


@pytest.mark.parametrize("path", PAGES)
def test_visitors_get_no_session(path: str) -> None:
    reply = ask(path)
    assert "Cookie" in reply.headers.get("Vary", "")
    assert "sessionid" not in str(reply.headers)


def test_the_page_that_is_shown_is_marked_in_the_navigation() -> None:
    for path in PAGES[1:]:
        assert re.findall(r'<a href="([^"]+)" aria-current="page"', ask(path).text) == [path]


def test_the_operators_page_is_for_staff() -> None:
    reply = ask("/operator")
    assert (reply.status, reply.headers["Location"]) == (302, "/admin/login/?next=/operator")
    login = ask(reply.headers["Location"])
    assert login.status == 200 and Outline(login.text).refused == []


@pytest.mark.parametrize(("language", "heading"), [("id", "Imbalan"), ("en", "Rewards"), ("de", "Rewards")])
def test_a_page_speaks_the_browsers_language(language: str, heading: str) -> None:
    reply = ask("/rewards", **{"Accept-Language": language})
    shown = "id" if language == "id" else "en"
    assert f"<h1>{heading}</h1>" in reply.text and f'<html lang="{shown}">' in reply.text
    assert reply.headers["Content-Language"] == shown and "Accept-Language" in reply.headers["Vary"]


def test_texts_for_scripts_come_in_the_pages_language() -> None:
    reply = ask("/jsi18n?id", **{"Accept-Language": "id"})
    assert reply.headers["Content-Type"].startswith("text/javascript")
    assert "Setuju dan ikut serta" in reply.text and "Setuju dan ikut serta" not in ask("/jsi18n?en").text


def test_choosing_a_language_needs_the_pages_own_form() -> None:
    assert ask("/language", "post", {"language": "id", "next": "/rewards"}).status == 403

    async def choose() -> Any:
        try:
            client = AsyncClient(enforce_csrf_checks=True)
            page: Any = await client.get("/rewards")
            token = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.content.decode())[0]
            form = {"language": "id", "next": "/rewards", "csrfmiddlewaretoken": token}
            chosen: Any = await client.post("/language", form)
            assert (chosen.status_code, chosen.headers["Location"]) == (302, "/rewards")
            away: Any = await client.post("/language", form | {"next": "https://elsewhere.example/"})
            assert away.headers["Location"] == "/"
            return await client.get("/rewards")
        finally:
            await sync_to_async(connections.close_all)()

    assert "<h1>Imbalan</h1>" in run(choose()).content.decode()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kvasir/ui/html.js", "text/javascript; charset=utf-8"),
        ("kvasir/vendor/preact/preact.mjs", "text/javascript; charset=utf-8"),
        ("kvasir/css/site.css", "text/css; charset=utf-8"),
        ("kvasir/ui/favicon.svg", "image/svg+xml"),
        ("admin/css/base.css", "text/css; charset=utf-8"),
    ],
)
def test_static_files_come_with_their_type(name: str, kind: str) -> None:
    reply = ask(f"/static/{name}")
    assert (reply.status, reply.headers["Content-Type"], reply.headers["Cache-Control"]) == (200, kind, "no-cache")
    assert "connect-src 'self' ws://testserver wss://testserver" in reply.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("folder", "place", "suffix", "kind"),
    [
        (SHADERS, "kernels/wgsl", ".wgsl", "text/wgsl; charset=utf-8"),
        (STATIC, "", ".wasm", "application/wasm"),
    ],
)
def test_kernels_come_with_their_type(folder: Path, place: str, suffix: str, kind: str) -> None:
    path = min(folder.rglob(f"*{suffix}"))
    reply = ask(f"/static/kvasir/{place}/{path.relative_to(folder)}".replace("//", "/"))
    assert (reply.headers["Content-Type"], reply.body) == (kind, path.read_bytes())


def test_everything_that_is_served_has_a_type() -> None:
    other = {path.suffix for path in STATIC.rglob("*") if path.is_file()} - set(TYPES)
    assert other <= {"", ".md"}, "list it in frontend/static_files.py"


def test_a_static_file_is_sent_once_and_compressed() -> None:
    whole = ask("/static/kvasir/css/site.css")
    packed = ask("/static/kvasir/css/site.css", **{"Accept-Encoding": "br, gzip"})
    assert packed.headers["Content-Encoding"] == "gzip" and gzip.decompress(packed.body) == whole.body
    assert len(packed.body) < len(whole.body) / 2 and "Accept-Encoding" in packed.headers["Vary"]
    again = ask("/static/kvasir/css/site.css", **{"If-None-Match": whole.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")
    assert ask("/static/kvasir/css/site.css", **{"If-None-Match": '"another"'}).status == 200


@pytest.mark.parametrize(
    "name", ["kvasir/nothing.js", "kvasir", "kvasir/vendor/SHA256SUMS", "../settings.py", "kvasir/../../apps.py", ""]
)
def test_what_is_no_static_file_is_not_there(name: str) -> None:
    assert ask(f"/static/{name}").status in (400, 404)


def test_static_files_are_only_read() -> None:
    assert ask("/static/kvasir/css/site.css", "post").status == 405


@pytest.mark.parametrize(
    ("relay", "sources"),
    [
        ("", []),
        ("ws://site:8000/relay", []),
        ("wss://relay-1.example.org/relay", ["wss://relay-1.example.org"]),
        ("wss://relay-1.example.org:8443/relay", ["wss://relay-1.example.org:8443"]),
        ("nonsense; script-src *", []),
    ],
)
def test_the_policy_lets_workers_dial_the_relay(relay: str, sources: list[str]) -> None:
    for policy in (content_policy("site:8000", relay), worker_policy("site:8000", relay)):
        line = next(part for part in policy.split("; ") if part.startswith("connect-src "))
        assert line.split()[1:] == ["'self'", "ws://site:8000", "wss://site:8000", *sources]
        assert policy.startswith("default-src 'none'; script-src 'self' 'wasm-unsafe-eval'")


def test_programs_pass_by_the_middleware_of_pages() -> None:
    reply = ask("/healthz", **{"Accept-Language": "id", "Cookie": "sessionid=made-up"})
    assert reply.status == 200
    assert "Content-Language" not in reply.headers and "Cookie" not in reply.headers.get("Vary", "")


def test_the_address_that_browsers_guess_leads_to_the_icon() -> None:
    reply = ask("/favicon.ico")
    assert (reply.status, reply.headers["Location"]) == (301, "/static/kvasir/ui/favicon.svg")


def test_people_get_a_page_where_there_is_nothing_and_programs_a_line() -> None:
    page = ask("/nothing", Accept="text/html,*/*")
    assert (page.status, page.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "Page not found" in page.text and Outline(page.text).refused == []
    for path, accept in (("/nothing", "*/*"), ("/static/kvasir/nothing.js", "text/html"), ("/v1/nothing", "text/html")):
        reply = ask(path, Accept=accept)
        assert reply.status == 404 and not reply.headers["Content-Type"].startswith("text/html")
