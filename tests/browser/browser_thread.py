"""A browser that several tests of a module share: it lives in a thread with an event loop of its own.

Used by module-scoped fixtures, where starting a browser and compiling shaders for every test would take minutes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, TypeVar

from playwright.async_api import Page

from tests.browser.chromium import DEADLINE_S, Chromium, chromium

T = TypeVar("T")


class BrowserThread:
    """Runs coroutines where the browser lives, one at a time, from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="browser", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], seconds: float = 2 * DEADLINE_S) -> T:
        """What the coroutine returns; TimeoutError after so many seconds."""

        async def bounded() -> T:
            async with asyncio.timeout(seconds):
                return await work

        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result(seconds + DEADLINE_S)

    def stop(self) -> None:
        """End the thread; nothing runs in it any more."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


class SharedPage:
    """One page of the shared browser, for tests that are not asynchronous."""

    def __init__(self, thread: BrowserThread, browser: Chromium, page: Page) -> None:
        self._thread = thread
        self._browser = browser
        self._page = page

    def evaluate(self, expression: str, argument: Any = None, seconds: float = 2 * DEADLINE_S) -> Any:
        """As Playwright's: the value of an expression, a promise, or a function of the argument."""
        try:
            return self._thread.run(self._page.evaluate(expression, argument), seconds)
        except BaseException as error:
            error.add_note(self._browser.report())
            raise


@contextmanager
def shared_page(url: str) -> Iterator[SharedPage]:
    """A page of a browser that ends with the context; errors that the page told by then raise AssertionError."""
    thread = BrowserThread()
    stack = AsyncExitStack()

    async def open_page() -> tuple[Chromium, Page]:
        browser = await stack.enter_async_context(chromium())
        return browser, await browser.open(url)

    try:
        browser, page = thread.run(open_page())
        yield SharedPage(thread, browser, page)
    finally:
        try:
            thread.run(stack.aclose())
        finally:
            thread.stop()
