"""What a page's first visit weighs, from its own text: everything it names, and all that those name, compressed.

Counted as the server sends it, headers included, without shaders, which a device without a GPU never asks for. Workers
count, and what their modules import; so every import is also known to lead somewhere.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import override_settings

from frontend.content_policy import IMPORTS
from tests.site.database import database_at
from tests.site.test_pages import PAGES, Outline, ask

MOST_BYTES = 150_000
HEADER_BYTES = 600  # of an answer, well counted
NAMES = re.compile(
    r"""(?:^|[\s;}])(?:import|export)\s*(?:[^"'`;()]*?\sfrom\s*|\{[^}]*\}\s*from\s*|)["']([^"'\s]+)["']"""
    r"""|new URL\(\s*["'](\./[^"']+|\.\./[^"']+)["'],\s*import\.meta\.url""",
    re.MULTILINE,
)


@pytest.fixture(scope="module", autouse=True)
def _database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path: Path = tmp_path_factory.mktemp("pages") / "pages.sqlite3"
    with database_at(path), override_settings(ALLOWED_HOSTS=["testserver"]):
        yield


def named_by(address: str, text: str) -> Iterator[str]:
    """Addresses of what a module names: imports, workers and files beside it. A dynamic import comes later, if ever."""
    without_comments = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    for groups in NAMES.findall(without_comments):
        name = next(filter(None, groups))
        if name in IMPORTS:
            yield IMPORTS[name]
        elif name.startswith("."):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(address), name))
        else:
            yield name


def weights(page: str) -> dict[str, int]:
    """Compressed bytes of everything that a page loads, by address."""
    html = ask(page, **{"Accept-Encoding": "gzip"})
    found = {page: len(html.body) + HEADER_BYTES}
    waiting = Outline(html.text).files
    while waiting:
        address = waiting.pop()
        if address in found or address.endswith(".wgsl"):
            continue
        reply = ask(address, **{"Accept-Encoding": "gzip"})
        assert reply.status == 200, f"{address} is not there"
        found[address] = len(reply.body) + HEADER_BYTES
        if address.endswith((".js", ".mjs")) and "/vendor/" not in address:
            waiting += named_by(address, ask(address).text)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_a_first_visit_is_light(page: str) -> None:
    found = weights(page)
    heaviest = sorted(found.items(), key=lambda item: -item[1])[:8]
    assert sum(found.values()) < MOST_BYTES, heaviest


def test_the_contributing_tabs_worker_is_counted() -> None:
    found = weights("/contribute")
    assert {"/static/kvasir/worker/tab/main.js", "/static/kvasir/vendor/preact/preact.mjs"} <= set(found)
    assert "/static/kvasir/worker/tab/session.js" not in found, "a visitor who only looks loads the whole worker"


def test_a_module_names_what_it_imports_in_every_form() -> None:
    text = """
/** @typedef {import("./types_only.js").Thing} Thing */
import "./bare.js";
import one, { two as three } from "../ui/html.js";
import {
    four,
} from "preact";
export { five } from "./five.js";
const six = await import("./six.js");
new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
"""
    folder = "/static/kvasir/"
    assert sorted(named_by(f"{folder}pages/page.js", text)) == [
        f"{folder}pages/bare.js", f"{folder}pages/five.js", f"{folder}pages/worker.js", f"{folder}ui/html.js",
        f"{folder}vendor/preact/preact.mjs",
    ]  # fmt: skip
