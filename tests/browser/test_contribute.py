"""A visitor's tab becomes a worker of the real service: consent, download, serving, pause, reload, leaving.

The answers that it takes part in are bit for bit those of one process, here by WebAssembly; `test_contribute_trouble`
has the software GPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.browser.chromium import Chromium, browse, wait_until
from tests.browser.contributing import (
    IS_SERVING,
    Site,
    answers_alike,
    contribute,
    counted,
    half_served_site,
    leave,
    open_contribute,
    serving,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with half_served_site(tmp_path_factory.mktemp("site")) as running:
        yield running


def test_answers_with_a_tab_are_bit_for_bit_those_of_one_process(site: Site) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await contribute(browser, site.url)
        assert await page.evaluate("contribution.kernel.backends") == ["wasm"]
        assert await answers_alike(site, page, seed=11) > 0
        assert await answers_alike(site, page, seed=12) > 0
        total = await page.evaluate("contribution.ranges.reduce((sum, range) => sum + range.nBytes, 0)")
        assert await page.evaluate("contribution.storage.downloadedBytes") >= total > 0
        assert await page.evaluate("contribution.identity.hasRecoveryKey")
        await wait_until(page, "contribution.rewards?.earnedMicrocredits > 0")  # backbones vouched for it
        await wait_until(page, "contribution.rewards.verifiedShare > 0.5")
        await leave(page)

    browse(scenario)


@pytest.mark.long
def test_a_reload_resumes_without_another_download_and_leaving_ends_it(site: Site) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await contribute(browser, site.url)
        node = await page.evaluate("contribution.identity.nodeId")
        asked: list[str] = []
        browser.context.on("request", lambda request: asked.append(request.url))
        await page.reload()
        await wait_until(page, "window.contribution")
        await serving(page)  # by itself: the visitor agreed before
        assert await page.evaluate("contribution.storage.downloadedBytes") == 0
        assert [url for url in asked if "/api/slices/" in url] == []
        assert await page.evaluate("contribution.identity.nodeId") == node
        assert await answers_alike(site, page, seed=21) > 0
        asking = [asyncio.create_task(site.ask(seed, 100)) for seed in (22, 23)]
        await leave(page)
        assert await asyncio.gather(*asking) == [await site.alone(22, 100), await site.alone(23, 100)]
        await page.reload()
        await wait_until(page, "window.contribution?.device")
        assert await page.evaluate("contribution.phase") == "idle"  # who left is not started again

    browse(scenario)


def test_a_paused_tab_is_given_no_work_at_once_and_none_is_lost(site: Site) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await contribute(browser, site.url)
        await answers_alike(site, page, seed=31)
        await page.click("#pause")
        await wait_until(page, "contribution.phase === 'paused'")
        assert await page.evaluate("contribution.pauseReason") == "visitor"
        expected = await site.alone(32)
        assert await site.ask(32) == expected
        await counted(page)
        before = await page.evaluate("contribution.served.nRowExperts")
        assert await site.ask(32) == expected
        await counted(page)
        assert await page.evaluate("contribution.served.nRowExperts") == before
        await page.click("#resume")
        await wait_until(page, IS_SERVING)
        assert await answers_alike(site, page, seed=33) > 0
        await leave(page)

    browse(scenario)


@pytest.mark.long
def test_a_second_tab_is_refused_until_the_first_is_gone(site: Site) -> None:
    async def scenario(browser: Chromium) -> None:
        first = await contribute(browser, site.url)
        second = await open_contribute(browser, site.url)
        await wait_until(second, "contribution.phase === 'elsewhere'")
        assert await second.query_selector("#start") is None
        await first.close()
        await serving(second)  # it goes on with what the first one had agreed to
        assert await second.evaluate("contribution.storage.downloadedBytes") == 0
        await leave(second)

    browse(scenario)


FILES = """(async () => {
    let n = 0;
    const slices = await (await navigator.storage.getDirectory()).getDirectoryHandle("slices");
    for await (const _ of slices.values()) n += 1;
    return n;
})()"""
NEW_CLIENT = """import('/static/kvasir/worker/tab/client.js').then(({ ContributionClient }) => {
    window.client = new ContributionClient();
})"""


@pytest.mark.long
def test_the_recovery_key_takes_what_was_earned_to_a_browser_that_knew_nothing(site: Site) -> None:
    async def first(browser: Chromium) -> tuple[str, str]:
        page = await contribute(browser, site.url)
        account = await page.evaluate("contribution.identity.accountId")
        await page.evaluate(NEW_CLIENT)
        key = await page.evaluate("client.recoveryKey()")
        await leave(page)
        return account, key

    async def second(browser: Chromium) -> None:
        page = await browser.open(f"{site.url}/")
        await page.evaluate(NEW_CLIENT)
        assert await page.evaluate("client.recoveryKey()") == ""
        assert await page.evaluate("client.restore('kva-nonsense')") == "token_refused"
        assert await page.evaluate("(key) => client.restore(key)", key) == ""
        await page.evaluate("client.start({ budgetBytes: 300e6 })")
        await wait_until(page, "client.state.activity === 'serving'")
        assert await page.evaluate("client.state.identity.accountId") == account
        assert await page.evaluate("client.restore('kva-nonsense')") == "busy"
        assert await page.evaluate("client.forget()") == "busy"
        await page.evaluate("client.leave()")
        await wait_until(page, "client.state.phase === 'idle'")
        assert await page.evaluate("client.forget()") == ""
        assert await page.evaluate("client.recoveryKey()") == ""
        assert await page.evaluate(FILES) == 0

    account, key = browse(first)
    assert key.startswith("kva-")
    browse(second, forgiven=["401"])
