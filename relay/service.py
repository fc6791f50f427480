"""One relay process: hub, application, background chores, and an orderly stop.

`relay.asgi` makes one and `manage.py serve` starts and stops it. Chores: announce this relay in the directory, write
usage records, close sockets whose token is no longer valid or whose other end does not read.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable

from kvasir.relay.directory import REFRESH_EVERY_S, FixedDirectory, RelayDirectory, checked_url
from kvasir.wire.frames import Refuse, RefuseCode, clipped
from market.nodes import tokens
from relay.server.frame_reader import HAS_FAST_UNMASKING
from relay.sockets.application import RelayApplication
from relay.sockets.hub import Hub, HubLimits
from relay.sockets.usage import UsageBook, write_usage
from relay.sql_thread import SqlThread

DRAIN_DEADLINE_S = 10.0  # for requests to be answered, and again for sockets to close
LOOK_EVERY_S = 0.05  # while draining

log = logging.getLogger(__name__)


class RelayService:
    """A relay process. Call `start` and `stop` on the event loop that serves the sockets."""

    def __init__(
        self,
        *,
        relay_id: str = "",
        url: str = "",
        directory: RelayDirectory | None = None,
        limits: HubLimits | None = None,
    ) -> None:
        self.relay_id = relay_id or secrets.token_hex(4)
        self._url = checked_url(url) if url else ""
        self._directory = directory or FixedDirectory()
        self._usage = UsageBook()
        self._sql = SqlThread()
        self._chores: asyncio.Task[None] | None = None
        self.hub = Hub(self.relay_id, self._usage.add, time.monotonic, limits or HubLimits())
        self.application = RelayApplication(self.hub, self._check_token)

    def start(self) -> None:
        """Start the chores."""
        warn_without_unmasking()
        self._chores = asyncio.get_running_loop().create_task(self._do_chores())
        log.info("relay %s serves%s", self.relay_id, f" as {self._url}" if self._url else "")

    async def stop(self, reason: str = "planned stop") -> None:
        """Announce the stop, wait within a deadline for the answers under way, and close every socket."""
        self.hub.announce_stop(reason)
        if self._chores is not None:
            self._chores.cancel()
        if self._url:
            await self._try("leaving the directory", lambda: self._directory.withdraw(self.relay_id))
        await self._until(lambda: self.hub.n_owed == 0, DRAIN_DEADLINE_S)
        self.hub.close_all(reason)
        await self._until(lambda: not self.hub.sessions, DRAIN_DEADLINE_S)
        await self._write_usage()
        self._sql.close()

    async def _check_token(self, text: str, scope: tokens.TokenScope) -> tokens.TokenHolder:
        return await self._sql.call(tokens.check, text, scope)

    async def _do_chores(self) -> None:
        while True:
            if self._url:
                await self._try("announcing", lambda: self._directory.announce(self.relay_id, self._url))
            self.hub.close_stalled()
            await self._try("checking tokens", self._end_tokens)
            await self._write_usage()
            await asyncio.sleep(REFRESH_EVERY_S)

    async def _end_tokens(self) -> None:
        in_use = {session.token_id for session in self.hub.sessions}
        reasons = await self._sql.call(tokens.ended, in_use) if in_use else {}
        for session in self.hub.sessions:
            reason = reasons.get(session.token_id)
            if reason is not None and session.is_open:
                self.hub.dismiss(session, Refuse(RefuseCode.TOKEN, clipped(f"token {session.token_id}: {reason}")))

    async def _write_usage(self) -> None:
        records = self._usage.take()
        if records and not await self._try("writing usage", lambda: self._sql.call(write_usage, records)):
            self._usage.put_back(records)

    async def _try(self, name: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Do a chore and return whether it succeeded. A failure is logged, and disturbs no socket."""
        try:
            await work()
        except Exception:
            log.warning("%s failed; next attempt in %g s", name, REFRESH_EVERY_S, exc_info=True)
            return False
        return True

    async def _until(self, is_done: Callable[[], bool], deadline_s: float) -> None:
        deadline = time.monotonic() + deadline_s
        while not is_done() and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_EVERY_S)


def warn_without_unmasking() -> None:
    """Warn when the C code that unmasks received bytes is missing: each byte then takes many times the CPU."""
    from autobahn.websocket import USES_NVX

    if not USES_NVX:
        log.warning(
            "autobahn runs without its C code (NVX): messages in fragments cost up to 40 times the CPU. Install a "
            "wheel that has it, or a C compiler before `pip install autobahn`, and leave AUTOBAHN_USE_NVX unset"
        )
    if not HAS_FAST_UNMASKING:
        log.warning(
            "websockets runs without its C code: unmasking costs several times the CPU. Install a wheel that has it, "
            "or a C compiler before `pip install websockets`"
        )
