"""A headless Chromium for tests: every page's errors are kept and fail the test, and every wait has a deadline.

Used by the browser tests through `browse`. It never downloads a browser: the machine's own is driven by Playwright,
with WebGPU on Chromium's software adapter. For what Playwright hides (a hidden tab) there is `raw_chromium`.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from playwright.async_api import BrowserContext, CDPSession, ConsoleMessage, Page, WebError, async_playwright

T = TypeVar("T")
DEADLINE_S = 60.0  # one wait
SCENARIO_S = 240.0  # a whole scenario, with the start of the browser
CLOSING_S = 60.0
POLL_S = 0.05
# WebGPU needs the first and nothing else, not even --use-webgpu-adapter. The sandbox needs a user who is not root.
# A watchdog would end a GPU process that a busy machine keeps waiting.
FLAGS = (
    "--enable-unsafe-webgpu", "--no-sandbox", "--disable-gpu-watchdog", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def executable() -> str:
    """The machine's Chromium. A test that needs one fails without it: a skip would hide the gap."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    raise AssertionError("no Chromium on PATH: `sh tools/install_test_tools.sh` or `apt-get install chromium`")


class Chromium:
    """A browser with one profile: storage, locks and permissions are shared by its pages, as in a person's browser."""

    def __init__(self, context: BrowserContext, forgiven: Sequence[str]) -> None:
        self.context = context
        self.said: list[str] = []
        self._forgiven = [re.compile(pattern) for pattern in forgiven]
        self._problems: list[str] = []
        context.set_default_timeout(DEADLINE_S * 1000)
        context.on("console", self._hear)
        context.on("weberror", self._hear_error)

    @property
    def problems(self) -> list[str]:
        """What pages and their workers did wrong and nobody forgave: uncaught, console.error, refused by CSP, 404."""
        return [text for text in self._problems if not any(pattern.search(text) for pattern in self._forgiven)]

    def forgive(self, pattern: str) -> None:
        """Let errors pass that match this regular expression: those that a test provokes."""
        self._forgiven.append(re.compile(pattern))

    async def open(self, url: str) -> Page:
        """A new page at this address, loaded. Raises when the answer is not 2xx."""
        page = await self.context.new_page()
        answer = await page.goto(url)
        assert answer is not None and answer.ok, f"{url} answered {answer and answer.status}"
        return page

    async def cdp(self, page: Page) -> CDPSession:
        """The page's own DevTools session."""
        return await self.context.new_cdp_session(page)

    async def crash_gpu(self) -> None:
        """Kill the browser's GPU process, once: from the second crash on, Chromium gives no adapter for a while."""
        browser = self.context.browser
        assert browser is not None
        session = await browser.new_browser_cdp_session()
        await session.send("Browser.crashGpuProcess")
        await session.detach()

    async def set_offline(self, is_offline: bool) -> None:
        """Cut or restore the network of every page (WebSockets that are open stay open: cut those with a proxy)."""
        await self.context.set_offline(is_offline)

    def report(self) -> str:
        """All that the pages said, for a test that fails."""
        return "\n".join(["the pages said:", *self.said[-60:]])

    def _hear(self, message: ConsoleMessage) -> None:
        where = message.location
        text = f"{message.type}: {message.text} ({where.get('url', '')}:{where.get('lineNumber', '')})"
        self.said.append(text)
        if message.type in {"error", "assert"}:
            self._problems.append(text)

    def _hear_error(self, error: WebError) -> None:
        text = f"uncaught: {error.error.stack or error.error}"
        self.said.append(text)
        self._problems.append(text)


@asynccontextmanager
async def chromium(
    profile: Path | None = None, forgiven: Sequence[str] = (), **options: Any
) -> AsyncIterator[Chromium]:
    """A browser that runs inside the context; at its end errors that are not forgiven raise AssertionError.

    `profile` is a folder that outlives it (OPFS, IndexedDB); without one it starts empty and leaves nothing.
    `options` are Playwright's for a context: viewport, locale, color_scheme, reduced_motion, permissions, …
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        async with async_playwright() as playwright:
            context = await playwright.chromium.launch_persistent_context(
                profile or scratch, executable_path=executable(), headless=True, args=list(FLAGS), **options
            )
            browser = Chromium(context, forgiven)
            try:
                yield browser
            except BaseException as error:
                error.add_note(browser.report())
                raise
            finally:
                await asyncio.wait_for(context.close(), CLOSING_S)
            assert browser.problems == [], browser.report()


def browse(
    scenario: Callable[[Chromium], Awaitable[T]],
    profile: Path | None = None,
    forgiven: Sequence[str] = (),
    seconds: float = SCENARIO_S,
    **options: Any,
) -> T:
    """Run a scenario in a browser of its own, to an end or a deadline; returns what it returned."""

    async def bounded() -> T:
        async with asyncio.timeout(seconds), chromium(profile, forgiven, **options) as browser:
            return await scenario(browser)

    return asyncio.run(bounded())


async def wait_until(page: Page, expression: str, seconds: float = DEADLINE_S) -> Any:
    """The expression's value once it is true in the page; an expression may be a promise.

    Playwright's own `wait_for_function` needs 'unsafe-eval', which the site's policy refuses. This one does not.
    """
    until = time.monotonic() + seconds
    while not (value := await page.evaluate(expression)):
        if time.monotonic() > until:
            shown = await page.evaluate("document.body ? document.body.innerText.slice(0, 2000) : ''")
            raise AssertionError(f"{expression!r} was {value!r} for {seconds} s; the page shows:\n{shown}")
        await asyncio.sleep(POLL_S)
    return value
