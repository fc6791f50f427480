"""A tab that contributes, as tests drive it: by the page's own buttons, watched through the state that it publishes.

`half_served_site` is a real service of whose experts one native worker holds about half, so that a tab is needed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Page

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from backbone.management.generation import generate
from backbone.sampling_params import SamplingParams
from kvasir.slicing.budget import WORKER_OVERHEAD_BYTES
from tests.browser.chromium import DEADLINE_S, Chromium, wait_until
from tests.browser.raw_chromium import Tab
from tests.swarm.agent_process import AgentProcess
from tests.swarm.service_process import ServiceProcess, service_process

DEMO_MODEL = Path(__file__).resolve().parents[2] / "models" / "kvasir-demo-moe.q4_k_m.gguf"
PROMPT = "The old dog was"
HALF_BYTES = 6_300_000  # of the demo model's 12.2 MB of experts
ENVIRONMENT = {
    "KVASIR_LOCAL_WORKERS": "0",
    "KVASIR_CTX": "512",
    "KVASIR_SLOTS": "4",
    "KVASIR_THREADS": "1",
}
# keeps what the page's worker publishes where a test can read it
TAP = """(() => {
    const Real = window.Worker;
    window.Worker = class extends Real {
        constructor(url, options) {
            super(url, options);
            this.addEventListener("message", ({ data }) => {
                if (data.type !== "state") return;
                window.contribution = data.state;
                window.nStates = (window.nStates ?? 0) + 1;
                (window.phases ??= []).push(data.state.phase);
            });
        }
    };
})()"""
IS_SERVING = "contribution?.activity === 'serving' && contribution.ranges.every((range) => range.step === 'served')"
WAS_TESTED = "contribution?.served.nRowExperts > 0"  # backbones compare some rows before they give it work


@dataclass(frozen=True, slots=True)
class Site:
    """A service and the model that it serves, opened in this process too."""

    service: ServiceProcess
    loaded: LoadedModel

    @property
    def url(self) -> str:
        return self.service.url

    def sampling(self, seed: int, n_tokens: int) -> dict[str, Any]:
        """Of a request that runs to its last token: no text ends by itself."""
        never = dict.fromkeys(self.loaded.tokenizer.eog_ids, -100.0)
        return {"temperature": 0.8, "seed": seed, "max_tokens": n_tokens, "logit_bias": never}

    async def alone(self, seed: int, n_tokens: int = 40) -> str:
        """The text by this process's engine."""
        return await asyncio.to_thread(self._alone, seed, n_tokens)

    def _alone(self, seed: int, n_tokens: int) -> str:
        prompt = self.loaded.tokenizer.encode(PROMPT, add_special=True, parse_special=False)
        params = SamplingParams(**self.sampling(seed, n_tokens))
        pieces: list[str] = []
        generate(self.loaded, NoWorkers(), [prompt], params, on_text=lambda _, text: pieces.append(text))
        return "".join(pieces)

    async def ask(self, seed: int, n_tokens: int = 40) -> str:
        """The text by the service."""
        sampling = self.sampling(seed, n_tokens)
        bias = {str(token): value for token, value in sampling["logit_bias"].items()}
        body = sampling | {"model": DEMO_MODEL.stem, "prompt": PROMPT, "logit_bias": bias}
        async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
            headers = {"authorization": f"Bearer {self.service.key}"}
            answer = await client.post(f"{self.url}/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])


@contextmanager
def half_served_site(directory: Path) -> Iterator[Site]:
    """A site that runs inside the context."""
    with (
        service_process(directory / "service", "--max-tokens=8", **ENVIRONMENT) as service,
        LoadedModel.open(DEMO_MODEL, n_slot=1, n_ctx=512, n_threads=1) as loaded,
    ):
        native = AgentProcess(service.url, WORKER_OVERHEAD_BYTES + HALF_BYTES, directory / "native")
        try:
            native.wait_for("settled")
            yield Site(service, loaded)
        finally:
            native.close()


async def open_contribute(browser: Chromium, url: str, is_software: bool = False) -> Page:
    """The page, before anything is agreed to; what its worker publishes is in `contribution`."""
    await browser.context.add_init_script(TAP)
    page = await browser.open(f"{url}/contribute{'?software=1' if is_software else ''}")
    await wait_until(page, "window.contribution?.device")
    return page


async def contribute(browser: Chromium, url: str, is_software: bool = False) -> Page:
    """Agree and press the button; returns when backbones have tested the tab."""
    page = await open_contribute(browser, url, is_software)
    assert await page.evaluate("contribution.phase") == "idle"
    assert await page.evaluate("contribution.storage.downloadedBytes") == 0  # nothing before consent
    await page.click("#start")
    await serving(page)
    return page


async def serving(page: Page) -> None:
    """Until the tab serves all that it was given, and was tested."""
    await wait_until(page, IS_SERVING, 2 * DEADLINE_S)
    await wait_until(page, WAS_TESTED, 2 * DEADLINE_S)


async def leave(page: Page) -> None:
    """Leave by the page's buttons. What a browser held that is only closed is given to the next test's after 45 s."""
    await page.click("#leave")
    await page.click("#leave-keep")
    await wait_until(page, "contribution.phase === 'idle'")


async def counted(page: Page | Tab) -> None:
    """Until all that was computed by now is in the published figures: they come once a second."""
    seen = int(await page.evaluate("nStates"))
    if isinstance(page, Tab):
        await page.wait_until(f"nStates > {seen + 2}")
    else:
        await wait_until(page, f"nStates > {seen + 2}")


async def answers_alike(site: Site, page: Page | Tab, seed: int, state: str = "contribution") -> int:
    """Ask until the tab has computed a part; every text must be the in-process one. Returns its row-experts.

    `state` is where the page keeps what its worker published.
    """
    count = f"{state}.served.nRowExperts"
    await counted(page)
    before = int(await page.evaluate(count))
    expected = await site.alone(seed)
    until = time.monotonic() + 2 * DEADLINE_S
    while time.monotonic() < until:
        assert await site.ask(seed) == expected
        now = int(await page.evaluate(count))
        if now > before:
            return now - before
    raise AssertionError(f"the tab computed nothing: {await page.evaluate(f'JSON.stringify({state})')}")
