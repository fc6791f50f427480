"""The dashboard in a browser over a real service: its numbers are the API's, its map the market's; it comes back."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from playwright.async_api import Page

from tests.browser.chromium import DEADLINE_S, Chromium, browse, wait_until
from tests.swarm.service_process import ServiceProcess

IS_LIVE = "document.querySelector('[data-phase=live]') !== null"
CELL = "document.querySelector('.heat-cell').textContent"
# the colours of all cells' middles, as "r,g,b"
COLOURS = """([nLayer, nExpert]) => {
    const canvas = document.querySelector(".heat canvas");
    const context = canvas.getContext("2d");
    const at = (layer, expert) => context.getImageData(
        Math.floor((expert + 0.5) * canvas.width / nExpert), Math.floor((layer + 0.5) * canvas.height / nLayer), 1, 1);
    return Array.from({ length: nLayer * nExpert }, (_, i) =>
        [...at(Math.floor(i / nExpert), i % nExpert).data.slice(0, 3)].join(","));
}"""
TOKENS = """() => [0, 1, 2, 3, 4].map((step) => {
    const text = getComputedStyle(document.documentElement).getPropertyValue(`--heat-${step}`).trim();
    return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)).join(",");
})"""


Cells = Mapping[tuple[int, int], tuple[int, int]]


async def ask(service: ServiceProcess, path: str, token: str, **sent: Any) -> httpx.Response:
    method = "POST" if sent else "GET"
    async with httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False) as client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        reply = await client.request(method, f"{service.url}{path}", headers=headers, **sent)
    assert reply.is_success, reply.text
    return reply


async def demanded(service: ServiceProcess, token: str) -> Cells:
    """Replicas and target by layer and expert, as the market tells any node."""
    (model,) = (await ask(service, "/api/expert-demand", token)).json()["models"]
    return {
        (layer["layer"], expert): (segment["replicas"], segment["target"])
        for layer in model["layers"]
        for segment in layer["segments"]
        for expert in range(*segment["experts"])
    }


async def counted(service: ServiceProcess) -> dict[str, float]:
    """Row-experts by source and tokens, as /metrics has them."""
    text = (await ask(service, "/metrics", service.key)).text
    rows = re.findall(r'^kvasir_backbone_row_experts_total\{.*source="(\w+)"\} (\S+)$', text, re.MULTILINE)
    tokens = re.findall(r"^kvasir_backbone_tokens_total\{.*\} (\S+)$", text, re.MULTILINE)
    return {source: float(value) for source, value in rows} | {"tokens": sum(map(float, tokens))}


async def open_dashboard(browser: Chromium, service: ServiceProcess) -> Page:
    page = await browser.open(f"{service.url}/dashboard")
    await wait_until(page, IS_LIVE)
    await wait_until(page, "document.querySelector('.heat canvas')?.width > 300")
    return page


def step_of(replicas: int, target: int) -> int:
    if replicas == 0:
        return 0
    return 1 if replicas < target else 2 if replicas == target else 3 if replicas < 2 * target else 4


def test_its_numbers_are_the_apis(service: ServiceProcess) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await open_dashboard(browser, service)
        prompt = {"model": "kvasir-demo-moe.q4_k_m", "prompt": "The little dragon", "max_tokens": 24}
        await ask(service, "/v1/completions", service.key, json=prompt)
        until = asyncio.get_running_loop().time() + DEADLINE_S
        while True:  # both are told by backbones once a second, one after the other
            metrics, told = await counted(service), (await ask(service, "/live/snapshot", "")).json()["service"]
            if told["row_experts"] | {"tokens": told["tokens"]} == metrics:
                break
            assert asyncio.get_running_loop().time() < until, (metrics, told)
            await asyncio.sleep(0.1)
        assert metrics["workers"] > 0
        await wait_until(page, f"document.querySelector('.summary').innerText.includes({shown(metrics['tokens'])!r})")
        rows = await page.locator("table.workers tbody tr").count()
        assert rows == await figure(page, "Workers") == 2

    browse(scenario)


def test_its_map_is_the_markets(service: ServiceProcess) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await open_dashboard(browser, service)
        token = str((await ask(service, "/api/nodes", "", json={"name": "looker"})).json()["token"])
        steps = await page.evaluate(TOKENS)
        assert len(set(steps)) == 5

        def is_drawn(cells: Cells, colours: object) -> bool:
            assert len(cells) == 6 * 16
            return bool(colours == [steps[step_of(*cells[divmod(i, 16)])] for i in range(96)])

        await until_shown(page, service, token, f"({COLOURS})([6, 16])", is_drawn)
        await check_keys(page, service, token)
        await page.click("summary")
        await wait_until(page, "document.querySelectorAll('table:has(caption) tbody tr').length === 6")
        replicas = await page.evaluate(COLOURS, [6, 16])
        await page.check("input[value=traffic]")
        await wait_until(page, "document.querySelector('.scale') !== null")
        await wait_until(page, f"String(({COLOURS})([6, 16])) !== {','.join(replicas)!r}")

    browse(scenario, viewport={"width": 1200, "height": 900})


async def until_shown(
    page: Page, service: ServiceProcess, token: str, expression: str, is_right: Callable[[Cells, Any], bool]
) -> None:
    """Until the page shows what the market tells: targets move with traffic, and the page hears it a moment later."""
    until = asyncio.get_running_loop().time() + DEADLINE_S
    while not is_right(cells := await demanded(service, token), shown := await page.evaluate(expression)):
        assert asyncio.get_running_loop().time() < until, (cells, shown)
        await asyncio.sleep(0.1)


async def check_keys(page: Page, service: ServiceProcess, token: str) -> None:
    """Walk over the map by keys; every cell says what the market says of it."""
    walk = {"Home": (0, 0), "End": (0, 15), "ArrowDown": (1, 15), "PageDown": (5, 15), "ArrowLeft": (5, 14)}
    await page.focus(".heat canvas")
    for key, place in walk.items():
        await page.keyboard.press(key)

        def is_told(cells: Cells, text: str, place: tuple[int, int] = place) -> bool:
            replicas, target = cells[place]
            return text.startswith(f"Layer {place[0]}, expert {place[1]} · {replicas} of {target} replica")

        await until_shown(page, service, token, CELL, is_told)
    await page.keyboard.press("Escape")
    await wait_until(page, f"{CELL}.startsWith('Point at a cell')")


def test_pointing_shows_a_cell(service: ServiceProcess) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await open_dashboard(browser, service)
        box = await page.locator(".heat canvas").bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + 2.5 * box["width"] / 16, box["y"] + 1.5 * box["height"] / 6)
        await wait_until(page, f"{CELL}.startsWith('Layer 1, expert 2 ')")
        await page.mouse.move(box["x"] + box["width"] / 2, box["y"] - 40)
        await wait_until(page, f"{CELL}.startsWith('Point at a cell')")

    browse(scenario)


def test_it_speaks_indonesian(service: ServiceProcess) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await open_dashboard(browser, service)
        shown = await page.inner_text("main")
        assert "Cakupan" in shown and "Pekerja" in shown and "Langsung" in shown
        assert "Coverage" not in shown and "Workers" not in shown

    browse(scenario, locale="id-ID")


def test_it_says_that_data_is_old_and_comes_back(service: ServiceProcess) -> None:
    web = service.pids()["web"]

    async def scenario(browser: Chromium) -> None:
        page = await open_dashboard(browser, service)
        os.kill(web, signal.SIGSTOP)  # the line stands, and nothing comes on it
        try:
            await wait_until(page, "document.querySelector('[data-phase=old]') !== null")
            assert "old" in await page.inner_text(".link")
            assert await page.locator("table.workers tbody tr").count() == 2  # what was known stays in sight
        finally:
            os.kill(web, signal.SIGCONT)
        await wait_until(page, IS_LIVE)

    browse(scenario)


@pytest.mark.long
def test_it_comes_back_with_another_process(service: ServiceProcess) -> None:
    async def scenario(browser: Chromium) -> None:
        browser.forgive(r"WebSocket connection to|ERR_CONNECTION_REFUSED")
        page = await open_dashboard(browser, service)
        position = service.kill("web")
        await asyncio.to_thread(service.wait_for, "web is ready", position)
        began_ms = int((await ask(service, "/live/snapshot", "")).json()["at"])
        await wait_until(page, f"Number(document.querySelector('.swarm').dataset.at) > {began_ms}", 2 * DEADLINE_S)
        await wait_until(page, IS_LIVE)

    browse(scenario)


async def figure(page: Page, name: str) -> int:
    """A figure of the summary, by its name."""
    return int(await page.inner_text(f".summary dl > div:has(dt:text-is('{name}')) dd"))


def shown(tokens: float) -> str:
    """How the page writes the count of tokens."""
    return f"{tokens:g} so far" if tokens < 1000 else ""
