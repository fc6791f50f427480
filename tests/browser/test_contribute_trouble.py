"""What happens to a contributing tab: cuts, a crashed GPU process, hidden and frozen tabs, battery and metered lines.

Answers stay bit for bit those of one process all the while, and the tab comes back by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from playwright.async_api import Route

from tests.browser.chromium import DEADLINE_S, SCENARIO_S, Chromium, browse, wait_until
from tests.browser.contributing import (
    IS_SERVING,
    Site,
    answers_alike,
    contribute,
    half_served_site,
    leave,
    open_contribute,
    serving,
)
from tests.browser.raw_chromium import RawChromium, Tab, raw_chromium
from tests.swarm.cutting_proxy import CuttingProxy

pytestmark = pytest.mark.long

NETWORK = r"net::ERR_|WebSocket|Failed to load resource"  # what Chromium itself writes when a connection breaks
NOBODY = ("127.0.0.1", 9)  # a port where nothing listens
SLICES = "/api/slices/"
CUT_BYTES = 300_000  # below a slice of this model


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with half_served_site(tmp_path_factory.mktemp("site")) as running:
        yield running


def test_a_cut_network_loses_no_answer_and_the_tab_comes_back(site: Site) -> None:
    async def scenario(browser: Chromium) -> None:
        async with CuttingProxy(("127.0.0.1", site.service.port)) as proxy:
            page = await contribute(browser, proxy.url)
            await answers_alike(site, page, seed=41)
            proxy.target = NOBODY
            proxy.break_all()
            await wait_until(page, "!contribution.isJoined")
            assert await site.ask(42) == await site.alone(42)
            proxy.target = ("127.0.0.1", site.service.port)
            await wait_until(page, f"contribution.isJoined && {IS_SERVING}", 2 * DEADLINE_S)
            assert await answers_alike(site, page, seed=43) > 0
            await leave(page)

    browse(scenario, forgiven=[NETWORK])


def test_a_download_that_is_cut_goes_on_where_it_was_even_after_a_reload(site: Site) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await open_contribute(browser, site.url)
        ranges: list[str] = []

        async def cut_first_then_none(route: Route) -> None:
            if len(ranges) > 1:
                await route.abort()
                return
            answer = await route.fetch()
            headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
            await route.fulfill(status=answer.status, headers=headers, body=(await answer.body())[:CUT_BYTES])

        browser.context.on("request", lambda r: ranges.append(r.headers["range"]) if SLICES in r.url else None)
        await browser.context.route(f"**{SLICES}**", cut_first_then_none)
        await page.click("#start")
        await wait_until(page, f"contribution.download?.doneBytes === {CUT_BYTES}")
        n_before = len(ranges)
        await browser.context.unroute_all(behavior="wait")
        await page.reload()
        await wait_until(page, "window.contribution")
        await serving(page)
        assert ranges[0].startswith("bytes=0-")
        assert ranges[n_before].startswith(f"bytes={CUT_BYTES}-"), ranges
        total = await page.evaluate("contribution.ranges.reduce((sum, range) => sum + range.nBytes, 0)")
        assert 0 < await page.evaluate("contribution.storage.downloadedBytes") < total
        assert await answers_alike(site, page, seed=51) > 0
        await leave(page)

    browse(scenario, forgiven=[NETWORK])


def test_a_gpu_answers_alike_and_its_crash_is_survived(site: Site) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await contribute(browser, site.url, is_software=True)
        assert await page.evaluate("contribution.kernel.backends") == ["webgpu"]
        assert await answers_alike(site, page, seed=61) > 0
        await browser.crash_gpu()
        assert await site.ask(62) == await site.alone(62)
        await wait_until(page, "phases.includes('recovering')")
        await wait_until(page, f"contribution.phase === 'working' && {IS_SERVING}", 3 * DEADLINE_S)
        await wait_until(page, "contribution.kernel.loadedBytes > 0")
        assert await page.evaluate("contribution.kernel.backends") == ["webgpu"]
        assert await answers_alike(site, page, seed=63) > 0
        await leave(page)

    browse(scenario, seconds=400.0)


async def start_in(tab: Tab) -> None:
    """Make a tab contribute without the page's buttons: this browser has no tap on the page's worker."""
    await tab.wait_until("location.protocol === 'http:' && document.readyState === 'complete'")
    await tab.evaluate(
        "import('/static/kvasir/worker/tab/client.js').then((m) => {"
        " window.client = new m.ContributionClient();"
        " window.nStates = 0;"
        " client.subscribe(() => { window.nStates += 1; });"
        " })"
    )
    await tab.wait_until("client.state.device")
    await tab.evaluate("client.start({ budgetBytes: 300e6 })")
    await back(tab)


async def back(tab: Tab) -> None:
    """Until it serves and was tested."""
    await tab.wait_until(
        "client.state.activity === 'serving' && client.state.ranges.every((range) => range.step === 'served')"
        " && client.state.served.nRowExperts > 0",
        2 * DEADLINE_S,
    )


def test_a_hidden_tab_goes_on_and_a_frozen_one_comes_back(site: Site) -> None:
    async def scenario(browser: RawChromium) -> None:
        tab = await browser.open(f"{site.url}/")
        await start_in(tab)
        await browser.open("about:blank")
        await tab.wait_until("document.visibilityState === 'hidden'")
        assert await answers_alike(site, tab, seed=71, state="client.state") > 0
        await tab.set_frozen(True)
        assert await site.ask(72) == await site.alone(72)
        await tab.set_frozen(False)
        await tab.activate()
        await back(tab)
        assert await answers_alike(site, tab, seed=73, state="client.state") > 0
        await tab.evaluate("client.leave()")
        await tab.wait_until("client.state.phase === 'idle'")

    async def bounded() -> None:
        async with asyncio.timeout(SCENARIO_S), raw_chromium() as browser:
            await scenario(browser)

    asyncio.run(bounded())


SURROUNDINGS = """(() => {
    window.line = Object.assign(new EventTarget(), { saveData: true });
    window.battery = Object.assign(new EventTarget(), { charging: true });
    Object.defineProperty(navigator, "connection", { value: window.line });
    navigator.getBattery = async () => window.battery;
})()"""


def test_it_works_only_on_power_and_unmetered_lines_when_told_so(site: Site) -> None:
    async def scenario(browser: Chromium) -> None:
        await browser.context.add_init_script(SURROUNDINGS)
        page = await open_contribute(browser, site.url)
        for name in ("power", "unmetered"):
            await page.check(f"input[name={name}]")
        await page.click("#start")
        await wait_until(page, "contribution.phase === 'paused' && contribution.pauseReason === 'metered'")
        assert await page.evaluate("contribution.storage.downloadedBytes") == 0
        await page.evaluate("line.saveData = false; line.dispatchEvent(new Event('change'))")
        await serving(page)
        await page.evaluate("battery.charging = false; battery.dispatchEvent(new Event('chargingchange'))")
        await wait_until(page, "contribution.phase === 'paused' && contribution.pauseReason === 'battery'")
        assert await site.ask(81) == await site.alone(81)
        await page.evaluate("battery.charging = true; battery.dispatchEvent(new Event('chargingchange'))")
        await wait_until(page, IS_SERVING)
        assert await answers_alike(site, page, seed=82) > 0
        await leave(page)

    browse(scenario)
