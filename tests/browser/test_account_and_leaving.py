"""A tab of somebody who is signed in works for their account; one that leaves in the middle of an answer harms nobody.

That what is under way is answered before the end is held by `relay_worker.test.mjs`, whose kernel a test can slow.
What was sent before the goodbye was read, and comes after it, the backbone computes itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.browser.chromium import DEADLINE_S, Chromium, browse, wait_until
from tests.browser.contributing import Site, answers_alike, contribute, half_served_site

pytestmark = pytest.mark.long

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


GOODBYE = "the visitor ends it"


def backbones_say(site: Site, pattern: str) -> list[str]:
    """Lines of their logs."""
    logs = (site.service.run_dir / "logs").glob("backbone*.log")
    return [line for log in logs for line in log.read_text().splitlines() if re.search(pattern, line)]


def test_a_tab_that_leaves_in_the_middle_of_an_answer_says_goodbye_and_changes_no_bit(site: Site) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await contribute(browser, site.url)
        await answers_alike(site, page, seed=91)
        before, expected = await page.evaluate("contribution.served.nRowExperts"), await site.alone(92, N_TOKENS)
        asking = asyncio.create_task(site.ask(92, N_TOKENS))
        await wait_until(page, f"contribution.served.nRowExperts > {before}")
        assert not asking.done(), "the answer was over before the tab could leave"
        await page.click("#leave")
        await page.click("#leave-keep")
        assert await asking == expected
        await wait_until(page, "contribution.phase === 'idle'")
        assert await page.evaluate("phases.includes('leaving') && !phases.includes('failed')")
        assert backbones_say(site, f"edge [0-9]+ ended: .*{GOODBYE}")

    browse(scenario)
