"""The harness itself: errors of pages fail a test, waits end, WebGPU is there, and a hidden tab is hidden."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.browser.chromium import Chromium, browse, wait_until
from tests.browser.raw_chromium import raw_chromium


def test_webgpu_opfs_and_wasm_are_there_in_pages_and_workers(static_url: str) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await browser.open(f"{static_url}/blank.html")
        found = await page.evaluate(
            """async () => ({gpu: !!await navigator.gpu?.requestAdapter(), secure: isSecureContext,
                             storage: !!await navigator.storage.getDirectory(), locks: !!navigator.locks})"""
        )
        assert found == {"gpu": True, "secure": True, "storage": True, "locks": True}

    browse(scenario)


@pytest.mark.parametrize(
    "wrong",
    [
        "void setTimeout(() => { throw new Error('thrown later') })",
        "void Promise.reject(new Error('rejected'))",
        "console.error('said')",
        "fetch('/nowhere').then(() => 0)",
        "void document.body.append(Object.assign(document.createElement('script'), {textContent: '1'}))",
    ],
    ids=["uncaught", "rejected", "console", "missing", "policy"],
)
def test_errors_of_a_page_fail_the_test(static_url: str, wrong: str) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await browser.open(f"{static_url}/blank.html")
        await page.evaluate(wrong)
        async with asyncio.timeout(60):
            while not browser.problems:
                await asyncio.sleep(0.02)

    with pytest.raises(AssertionError, match="the pages said"):
        browse(scenario)


def test_forgiven_errors_pass_and_waits_are_bounded_under_the_sites_policy(static_url: str) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await browser.open(f"{static_url}/blank.html")
        await page.evaluate("console.error('expected here')")
        assert await wait_until(page, "Promise.resolve(document.title)") == "A page for tests"
        with pytest.raises(AssertionError, match="was False for"):
            await wait_until(page, "document.title === 'another'", seconds=0.2)

    browse(scenario, forgiven=["expected here"])


@pytest.mark.long
def test_storage_outlives_a_browser_only_in_a_profile(static_url: str, tmp_path: Path) -> None:
    async def visit(browser: Chromium) -> str | None:
        page = await browser.open(f"{static_url}/blank.html")
        seen: str | None = await page.evaluate("localStorage.getItem('visited')")
        await page.evaluate("localStorage.setItem('visited', 'yes')")
        return seen

    assert [browse(visit, profile) for profile in (None, None, tmp_path, tmp_path)] == [None, None, None, "yes"]


def test_the_gpu_process_can_be_crashed_and_pages_hear_of_it(static_url: str) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await browser.open(f"{static_url}/blank.html")
        await page.evaluate(
            """async () => { const device = await (await navigator.gpu.requestAdapter()).requestDevice();
                             device.lost.then((told) => { document.title = `lost: ${told.reason}`; }); }"""
        )
        await browser.crash_gpu()
        await wait_until(page, "document.title === 'lost: unknown'")

    browse(scenario, forgiven=["GPU|webgpu|WebGPU"])


def test_a_tab_behind_another_is_hidden(static_url: str) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(180), raw_chromium() as browser:
            behind = await browser.open(f"{static_url}/blank.html")
            await behind.wait_until("document.visibilityState === 'visible'")
            other = await browser.open("about:blank")
            await other.activate()
            await behind.wait_until("document.visibilityState === 'hidden'")
            await behind.activate()
            await behind.wait_until("document.visibilityState === 'visible'")

    asyncio.run(scenario())
