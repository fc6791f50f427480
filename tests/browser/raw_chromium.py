"""Chromium driven by the DevTools protocol alone, for what Playwright hides: it makes every tab believe it is in front.

Used by the tests of hidden, frozen and discarded tabs. A tab here is a `Tab`; one browser at a time per context.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.browser.chromium import CLOSING_S, DEADLINE_S, FLAGS, POLL_S, executable


class RawChromium:
    """The browser's end of the protocol: commands are matched to answers by number, events are dropped."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())

    async def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """A command's result. Raises AssertionError with the browser's reason, TimeoutError when none comes,
        ConnectionError when the browser goes meanwhile.
        """
        self._number += 1
        answer = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        command = {"id": self._number, "method": method, "params": params}
        await self._socket.send(json.dumps(command | ({"sessionId": session} if session else {})))
        async with asyncio.timeout(DEADLINE_S):
            said = await answer
        assert "error" not in said, f"{method}: {said}"
        result: dict[str, Any] = said["result"]
        return result

    async def open(self, url: str) -> Tab:
        """A new tab in front of the others, told to go to this address."""
        target = (await self.send("Target.createTarget", url=url))["targetId"]
        session = (await self.send("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        return Tab(self, target, session)

    async def close(self) -> None:
        """Ask the browser to end, as a person does. It may be gone before it answers."""
        with contextlib.suppress(ConnectionError, ConnectionClosed):
            await self.send("Browser.close")
        self._reader.cancel()

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for text in self._socket:
                said = json.loads(text)
                if (answer := self._waiting.pop(said.get("id"), None)) and not answer.done():
                    answer.set_result(said)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the browser is gone"))


class Tab:
    """One tab. `activate` another one and this one is hidden, as the browser itself sees it."""

    def __init__(self, browser: RawChromium, target: str, session: str) -> None:
        self.browser = browser
        self._target = target
        self._session = session

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression or promise in the page. Raises AssertionError when it throws."""
        said = await self.browser.send(
            "Runtime.evaluate", self._session, expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def wait_until(self, expression: str, seconds: float = DEADLINE_S) -> Any:
        """The expression's value once it is true. Bounded; says what the value was."""
        until = time.monotonic() + seconds
        while not (value := await self._evaluate_if_there(expression)):
            assert time.monotonic() < until, f"{expression!r} was {value!r} for {seconds} s"
            await asyncio.sleep(POLL_S)
        return value

    async def _evaluate_if_there(self, expression: str) -> Any:
        """None while the tab has no page yet, or changes it."""
        try:
            return await self.evaluate(expression)
        except AssertionError as error:
            if "xecution context" not in str(error):
                raise
            return None

    async def activate(self) -> None:
        """Bring it to the front: the tab that was there becomes hidden."""
        await self.browser.send("Target.activateTarget", targetId=self._target)

    async def set_frozen(self, is_frozen: bool) -> None:
        """Freeze the tab as the browser does to save energy, or thaw it."""
        state = "frozen" if is_frozen else "active"
        await self.browser.send("Page.setWebLifecycleState", self._session, state=state)

    async def close(self) -> None:
        """Close the tab."""
        await self.browser.send("Target.closeTarget", targetId=self._target)


@asynccontextmanager
async def raw_chromium(profile: Path | None = None) -> AsyncIterator[RawChromium]:
    """A browser that runs inside the context, with its background throttling as people have it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder = profile or Path(scratch)
        flags = [*FLAGS, "--headless", "--remote-debugging-port=0", f"--user-data-dir={folder}"]
        process = subprocess.Popen(
            [executable(), *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            async with connect(await _address(folder, process), max_size=None) as socket:
                browser = RawChromium(socket)
                yield browser
                await browser.close()
        finally:
            await _end(process)


async def _address(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """Where it listens: it writes port and path to a file of its profile."""
    until = time.monotonic() + DEADLINE_S
    told = folder / "DevToolsActivePort"
    while not (told.is_file() and len(lines := told.read_text().splitlines()) == 2):
        assert process.poll() is None, f"{executable()} ended with {process.returncode}"
        assert time.monotonic() < until, f"{executable()} never said where it listens"
        await asyncio.sleep(POLL_S)
    return f"ws://127.0.0.1:{lines[0]}{lines[1]}"


async def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        await asyncio.to_thread(process.wait, CLOSING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.wait)
