"""Every page as people meet it: axe finds nothing serious, nothing is wider than the screen, in light and dark.

Screenshots are written to `run/screenshots/`: look at them after a change.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, Route

from kvasir.slicing.budget import WORKER_OVERHEAD_BYTES
from tests.browser.chromium import Chromium, browse, wait_until
from tests.browser.contribution_states import STATES, stand_in
from tests.swarm.agent_process import AgentProcess
from tests.swarm.service_process import ServiceProcess, service_process

ROOT = Path(__file__).resolve().parents[2]
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
SHOTS = ROOT / "run" / "screenshots"
HALF_BYTES = 6_300_000  # of the demo model's 12.2 MB of experts
STAFF = ("keeper", "a-password-of-this-test")
SIZES = {"desktop": (1440, 900), "phone": (390, 844)}
LOOKS = [("desktop", "light"), ("phone", "dark")]
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
DRAWN = {
    "": "document.querySelector('.hero img').complete",
    "dashboard": "document.querySelector('canvas')?.clientWidth > 200",
    "playground": "document.querySelector('#asked') !== null",
    "contribute": "document.querySelector('#start') !== null",
    "rewards": "document.querySelector('#account-key') && !document.querySelector('[aria-busy=true]')",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A whole service with one worker, whose range is half of all experts, and somebody of its staff."""
    directory = tmp_path_factory.mktemp("look")
    with service_process(directory / "service", "--max-tokens=8", KVASIR_LOCAL_WORKERS="0") as process:
        environment = {"KVASIR_RUN_DIR": str(process.run_dir), "DJANGO_SUPERUSER_PASSWORD": STAFF[1]}
        command = [sys.executable, "manage.py", "createsuperuser", "--noinput", "--email", "", "--username", STAFF[0]]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=True, timeout=120)
        agent = AgentProcess(process.url, WORKER_OVERHEAD_BYTES + HALF_BYTES, directory / "worker")
        try:
            agent.wait_for("settled")
            yield process
        finally:
            agent.close()


async def check(page: Page, name: str) -> list[str]:
    """What is wrong with how this page looks; writes its screenshot."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=SHOTS / f"{name}.png", full_page=True, animations="disabled")
    wide: list[str] = await page.evaluate(
        """() => document.documentElement.scrollWidth <= innerWidth ? [] :
             [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
               .slice(0, 5).map((e) => `wider than the screen: ${e.tagName} ${e.className}`)"""
    )
    await page.evaluate(AXE.read_text())
    found: list[dict[str, Any]] = await page.evaluate(
        """async (tags) => {
             const options = { runOnly: tags, preload: false, resultTypes: ["violations"] };
             const where = (nodes) => nodes.slice(0, 4).map((node) => node.target.join(" "));
             const shown = ({ id, impact, nodes }) => ({ id, impact, where: where(nodes) });
             return (await axe.run(document, options)).violations.map(shown);
           }""",
        RULES,
    )
    serious = [f"{v['id']} ({v['impact']}): {v['where']}" for v in found if v["impact"] in {"serious", "critical"}]
    return [f"{name}: {text}" for text in [*wide, *serious]]


def look(size: str, scheme: str, scenario: Callable[[Chromium], Awaitable[list[str]]], **options: Any) -> list[str]:
    width, height = SIZES[size]
    viewport = {"width": width, "height": height}
    screen: dict[str, Any] = {"viewport": viewport, "color_scheme": scheme, "reduced_motion": "reduce"}
    return browse(scenario, **screen, **options)


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_every_page_is_sound(site: ServiceProcess, size: str, scheme: str) -> None:
    async def scenario(browser: Chromium) -> list[str]:
        wrong = []
        for path, drawn in DRAWN.items():
            page = await browser.open(f"{site.url}/{path}")
            await wait_until(page, drawn)
            wrong += await check(page, f"{path or 'home'}-{size}-{scheme}")
            await page.close()
        browser.forgive("404")
        page = await browser.context.new_page()
        await page.goto(f"{site.url}/nothing-is-here")
        return wrong + await check(page, f"not_found-{size}-{scheme}")

    assert look(size, scheme, scenario) == []


@pytest.mark.long
@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_the_staffs_page_is_sound(site: ServiceProcess, size: str, scheme: str) -> None:
    async def scenario(browser: Chromium) -> list[str]:
        page = await browser.open(f"{site.url}/operator")
        await page.fill("[name=username]", STAFF[0])
        await page.fill("[name=password]", STAFF[1])
        await page.press("[name=password]", "Enter")
        await page.wait_for_url("**/operator")
        await page.wait_for_selector("#nodes-title")
        return await check(page, f"operator-{size}-{scheme}")

    assert look(size, scheme, scenario) == []


@pytest.mark.long
@pytest.mark.parametrize(("size", "scheme"), [("desktop", "dark"), ("phone", "light")])
def test_every_state_of_the_contributing_tab_is_sound(site: ServiceProcess, size: str, scheme: str) -> None:
    async def scenario(browser: Chromium) -> list[str]:
        wrong = []
        for state in STATES:
            page = await browser.context.new_page()
            await page.route("**/worker/tab/main.js", _sender(state))
            await page.goto(f"{site.url}/contribute")
            await wait_until(page, "document.querySelector('#contribute .card, #contribute .notice') !== null")
            wrong += await check(page, f"contribute_{state}-{size}-{scheme}")
            await page.close()
        return wrong

    assert look(size, scheme, scenario) == []


def _sender(state: str) -> Callable[[Route], Awaitable[None]]:
    async def send(route: Route) -> None:
        await route.fulfill(content_type="text/javascript", body=stand_in(state))

    return send


def test_a_visitor_signs_in_and_out_of_rewards_in_indonesian(site: ServiceProcess, tmp_path: Path) -> None:
    made = httpx.post(f"{site.url}/api/nodes", json={"name": "visitor"}, timeout=60).json()

    async def scenario(browser: Chromium) -> list[str]:
        page = await browser.open(f"{site.url}/rewards")
        await page.fill("#account-key", "kva-wrong")
        await page.press("#account-key", "Enter")
        await page.wait_for_selector("#account-key[aria-invalid=true]")
        await page.fill("#account-key", made["account_key"])
        await page.press("#account-key", "Enter")
        await page.wait_for_selector("#balance")
        assert await page.inner_text("#signed-id") == made["account_id"]
        async with page.expect_download() as waiting:
            await page.click("#csv")
        path = await (await waiting.value).path()
        assert path.read_text().startswith("day,node_id,fingerprint,layer,first_expert,last_expert,row_experts,")
        await page.reload()
        await page.wait_for_selector("#balance")
        assert await page.inner_text("h1") == "Imbalan"
        wrong = await check(page, "rewards_signed_in-desktop-light")
        await page.click("#sign-out")
        await page.wait_for_selector("#account-key")
        await page.reload()
        await page.wait_for_selector("#account-key")
        return wrong

    assert look("desktop", "light", scenario, locale="id", accept_downloads=True) == []


def test_consent_comes_before_anything_is_started_and_says_the_choice(site: ServiceProcess) -> None:
    async def scenario(browser: Chromium) -> list[str]:
        page = await browser.context.new_page()
        await page.route("**/worker/tab/main.js", _sender("idle"))
        await page.goto(f"{site.url}/contribute")
        await page.wait_for_selector("#start")
        text = await page.inner_text("form.consent")
        for part in ("1 GiB", "What is downloaded", "What it costs you", "What others can see", "How to stop"):
            assert part in text
        assert await page.query_selector(".trouble") is None, "a command went out before the button"
        await page.focus("#budget")
        await page.keyboard.press("Home")
        await wait_until(page, "document.querySelector('.budget output').textContent === '96 MiB'")
        await page.fill("[name=region]", " Java ")
        await page.keyboard.press("Enter")
        sent = await wait_until(page, "document.querySelector('.trouble p')?.textContent ?? ''")
        assert '"type":"start"' in sent and '"budgetBytes":100663296' in sent and '"region":"Java"' in sent
        return []

    assert look("desktop", "light", scenario) == []


def test_theme_and_language_are_chosen_and_remembered(site: ServiceProcess) -> None:
    async def scenario(browser: Chromium) -> list[str]:
        page = await browser.open(f"{site.url}/")
        ground = "getComputedStyle(document.documentElement).backgroundColor"
        light = await page.evaluate(ground)
        for _ in range(2):  # as the device, light, dark
            await page.click("#theme")
        await wait_until(page, f"{ground} !== '{light}'")
        dark = await page.evaluate(ground)
        await page.click("button[name=language]")
        await wait_until(page, f"document.documentElement.lang === 'id' && {ground} === '{dark}'")
        page = await browser.open(f"{site.url}/rewards")
        await wait_until(page, f"{ground} === '{dark}'")
        assert await page.inner_text("h1") == "Imbalan"
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.getAttribute('href')") == "#main"
        return []

    assert look("desktop", "light", scenario) == []
