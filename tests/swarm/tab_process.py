"""The pages' worker in a node process, behind a relay: what it says and what it is told, line by line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvasir.wire.frames import Role
from tests.browser.node_tests import FOLDER, NODE
from tests.swarm.relay_process import KERNEL, MODEL, RelayProcess

D_MODEL = 1280
EXPERTS = {2: (4, 5, 6, 7, 12, 13, 14, 15), 5: (0, 1)}  # by layer, in the order of local ids
PATIENCE_S = 120.0


class TabProcess:
    """One worker; `url` may be of a proxy in front of the relay."""

    def __init__(self, relay: RelayProcess, errors: Path, url: str = "") -> None:
        self._told = {"url": url or relay.url, "token": relay.tokens[Role.WORKER], "model": MODEL, "kernel": KERNEL}
        self._errors = errors
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        with self._errors.open("w") as sink:
            self._process = await asyncio.create_subprocess_exec(
                NODE, "--import", "./site_paths.mjs", "relay_tab.mjs",
                cwd=FOLDER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=sink,
            )  # fmt: skip
        self.tell(json.dumps(self._told | {"d_model": D_MODEL}))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self._errors.read_text())
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    async def said(self, event: str) -> dict[str, Any]:
        """The next event of this name; others before it are passed over."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while line := await self.process.stdout.readline():
                found: dict[str, Any] = json.loads(line)
                if found["event"] == event:
                    return found
        raise AssertionError(f"the process ended before {event!r}: {self._errors.read_text()}")
