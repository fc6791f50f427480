"""Measure what a page of the site weighs before anything is kept, and how far a contributing tab is from the backbone.

Called by `bench_webgpu`: starts the whole service, opens its pages in Chromium, makes one of them a worker and asks for
tokens until the backbone has timed it. The shaders are not counted: a device without a GPU never loads them.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from playwright.async_api import Page

from tests.browser.chromium import Chromium, browse, wait_until
from tests.swarm.service_process import ServiceProcess, service_process

PAGES = ("", "dashboard", "contribute", "playground", "rewards")
NOT_COUNTED = ".wgsl"
DEADLINE_S = 600.0
KB = 1000
N_ASKED = 4
START = """software => import('/static/kvasir/worker/tab/client.js').then(({ ContributionClient }) => {
    window.contribution = new ContributionClient({ software });
})"""
ASK = """async (key) => {
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
    const models = await (await fetch('/v1/models', { headers })).json();
    const body = JSON.stringify({ model: models.data[0].id, prompt: 'The little dragon', max_tokens: 60 });
    return (await fetch('/v1/completions', { method: 'POST', headers, body })).status;
}"""
TRIP = """fetch('/live/snapshot').then((answer) => answer.json()).then(({ workers }) =>
    workers.find(({ kind }) => kind === 'browser')?.round_trip_ms ?? null)"""


@dataclass(frozen=True, slots=True)
class BrowserSite:
    """Compressed kilobytes of each page's first load; least milliseconds of an answer of the tab, by backend."""

    first_load_kb: Mapping[str, float]
    round_trip_ms: Mapping[str, float]


def measure_browser_site() -> BrowserSite:
    """Take every figure. Needs Chromium and the demo model."""
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-") as folder, service_process(Path(folder)) as service:
        loads = {f"/{name}": _browse(partial(_first_load, f"{service.url}/{name}")) for name in PAGES}
        trips = {name: _browse(partial(_round_trip, service, name == "webgpu")) for name in ("wasm", "webgpu")}
        return BrowserSite(loads, trips)


def _browse(scenario: Callable[[Chromium], Awaitable[float]]) -> float:
    return browse(scenario, seconds=DEADLINE_S)


async def _first_load(url: str, browser: Chromium) -> float:
    """Kilobytes over the network, headers included, until nothing is under way any more."""
    page = await browser.context.new_page()
    session = await browser.cdp(page)
    addresses: dict[str, str] = {}
    received: dict[str, float] = {}
    session.on("Network.responseReceived", lambda told: addresses.update({told["requestId"]: told["response"]["url"]}))
    session.on("Network.loadingFinished", lambda told: received.update({told["requestId"]: told["encodedDataLength"]}))
    await session.send("Network.enable")
    await page.goto(url)
    await page.wait_for_load_state("networkidle")
    counted = [n for request, n in received.items() if not addresses.get(request, "").endswith(NOT_COUNTED)]
    return sum(counted) / KB


async def _round_trip(service: ServiceProcess, software: bool, browser: Chromium) -> float:
    """Contribute until the backbone has timed this tab, then leave."""
    page = await browser.open(f"{service.url}/contribute")
    await page.evaluate(START, software)
    await wait_until(page, "contribution.state.advice !== null")
    await page.evaluate("contribution.start({ budgetBytes: contribution.state.advice.suggestedBytes })")
    await wait_until(page, "contribution.state.activity === 'serving'", DEADLINE_S)
    trip = await _timed(page, service.key)
    await page.evaluate("contribution.leave()")
    await wait_until(page, "contribution.state.phase === 'idle'", DEADLINE_S)
    return trip


async def _timed(page: Page, key: str) -> float:
    """Ask for tokens until the dashboard knows the tab's round trip, and a few times more: the least counts."""
    n_left = N_ASKED
    async with asyncio.timeout(DEADLINE_S):
        while (trip := await page.evaluate(TRIP)) is None or n_left > 0:
            assert await page.evaluate(ASK, key) == 200
            n_left -= trip is not None
            await asyncio.sleep(1)  # the backbone publishes what it saw each second
    return float(trip)
