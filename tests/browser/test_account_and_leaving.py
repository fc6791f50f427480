"""A tab of somebody who is signed in works for their account; a tab that leaves answers what is under way first."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.browser.chromium import DEADLINE_S, Chromium, browse, wait_until
from tests.browser.contributing import Site, answers_alike, contribute, half_served_site

N_TOKENS = 200  # some seconds


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with half_served_site(tmp_path_factory.mktemp("site")) as running:
        yield running


def test_a_tab_works_for_the_account_that_is_signed_in(site: Site) -> None:
    made = httpx.post(f"{site.url}/api/nodes", json={"name": "a node before"}, timeout=DEADLINE_S).json()

    async def scenario(browser: Chromium) -> str:
        page = await browser.open(f"{site.url}/rewards")
        await page.fill("#account-key", made["account_key"])
        await page.press("#account-key", "Enter")
        await page.wait_for_selector("#balance")
        page = await contribute(browser, site.url)
        assert await page.evaluate("contribution.identity.accountId") == made["account_id"]
        assert await page.evaluate("contribution.identity.hasRecoveryKey")
        return str(await page.evaluate("contribution.identity.nodeId"))

    node = browse(scenario)
    headers = {"authorization": f"Bearer {made['account_key']}"}
    revoked = httpx.post(f"{site.url}/api/nodes/revoke", json={"node_id": node}, headers=headers, timeout=DEADLINE_S)
    assert revoked.json() == {"ok": True}  # only who owns a node can take it back


def lost_answers(site: Site, node: str) -> list[str]:
    """What backbones waited for and this node never answered; work that it refused in time is none."""
    logs = (site.service.run_dir / "logs").glob("backbone*.log")
    found = [line for log in logs for line in log.read_text().splitlines() if f"worker {node} is left out" in line]
    return [line for line in found if not re.search("takes no dispatches now", line)]


def test_leaving_answers_what_is_under_way(site: Site) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await contribute(browser, site.url)
        node = await page.evaluate("contribution.identity.nodeId")
        await answers_alike(site, page, seed=91)
        before, expected = await page.evaluate("contribution.served.nRowExperts"), await site.alone(92, N_TOKENS)
        lost_before = lost_answers(site, node)
        asking = asyncio.create_task(site.ask(92, N_TOKENS))
        await wait_until(page, f"contribution.served.nRowExperts > {before}")
        assert not asking.done(), "the answer was over before the tab could leave"
        await page.click("#leave")
        await page.click("#leave-keep")
        assert await asking == expected
        await wait_until(page, "contribution.phase === 'idle'")
        assert await page.evaluate("phases.includes('leaving') && !phases.includes('failed')")
        assert lost_answers(site, node) == lost_before

    browse(scenario)
