"""Fetches a slice into its partial file: from the byte where the last attempt ended, until all bytes are there.

`slices.store` calls it. The header always comes from the site; weights come from the origin when one is offered, and
from the site once that fails. A cut, a timeout or a busy server is waited out and tried again; only attempts that bring
no byte count as failed. Nothing is verified here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from kvasir.errors import DownloadError
from kvasir.worker.slices.http import RangeSource, SourceRefusedError, TransferError
from kvasir.worker.slices.manifest import OriginPiece, SliceManifest
from kvasir.worker.slices.paths import DiskFullError, PartialFile

WRITE_BYTES = 1 << 20  # are gathered before a thread writes them
ORIGIN_ATTEMPTS = 2  # that bring nothing, until the site is asked instead

Progress = Callable[[int, int], None]  # bytes that are there, bytes in all
Pause = Callable[[float], Awaitable[None]]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Patience:
    """How failed attempts are spread out: waits double, and are shortened at random so that workers do not agree."""

    attempts: int = 8  # in a row without a byte
    first_s: float = 0.5
    longest_s: float = 30.0
    pause: Pause = asyncio.sleep
    chance: Callable[[], float] = field(default=random.random)

    async def wait(self, n_failed: int, at_least_s: float) -> None:
        """Wait after the `n_failed`-th failure in a row."""
        longest = min(self.longest_s, self.first_s * 2.0 ** (n_failed - 1))
        await self.pause(max(at_least_s, longest * (0.5 + 0.5 * self.chance())))


@dataclass(frozen=True, slots=True)
class Sources:
    """Where bytes may come from."""

    site: RangeSource
    slice_url: str
    origin: RangeSource  # has no token


@dataclass(frozen=True, slots=True)
class _Step:
    """The bytes that come next: up to `stop`, from one address."""

    stop: int
    origin: OriginPiece | None = None
    origin_start: int = 0
    is_padding: bool = False


class SliceDownload:
    """One slice. `run` may be cancelled at any moment, and a new one goes on where it was."""

    def __init__(self, sources: Sources, layout: SliceManifest, file: PartialFile, patience: Patience) -> None:
        self._sources = sources
        self._layout = layout
        self._file = file
        self._patience = patience
        self._origin_failures = 0
        self.use_origin = bool(layout.origin)

    async def run(self, progress: Progress) -> None:
        """Fetch what is missing.

        Raises SliceChangedError when the site has other bytes by now, DiskFullError, or DownloadError after too many
        attempts in a row that brought nothing.
        """
        check_room(self._file.path, self._layout.n_bytes - self._file.n_bytes)
        n_failed = 0
        progress(self._file.n_bytes, self._layout.n_bytes)
        while self._file.n_bytes < self._layout.n_bytes:
            before = self._file.n_bytes
            step = self._next_step()
            try:
                await self._fetch(step, progress)
                n_failed = 0
                continue
            except SourceRefusedError as error:
                if step.origin is None:
                    raise
                self._leave_origin(error)
                continue
            except TransferError as error:
                failure = error
            n_failed = 1 if self._file.n_bytes > before else n_failed + 1
            if n_failed >= self._patience.attempts:
                raise DownloadError(f"{n_failed} attempts in a row brought nothing: {failure}") from failure
            if step.origin is not None and self._file.n_bytes == before:
                self._origin_failures += 1
                if self._origin_failures >= ORIGIN_ATTEMPTS:
                    self._leave_origin(failure)
            log.info("the download stopped at byte %d and goes on there: %s", self._file.n_bytes, failure)
            await self._patience.wait(n_failed, failure.retry_after_s)

    def _next_step(self) -> _Step:
        position, layout = self._file.n_bytes, self._layout
        if not self.use_origin:
            return _Step(layout.n_bytes)
        if position < layout.header_bytes:
            return _Step(layout.header_bytes)
        for piece, place in zip(layout.pieces, layout.origin, strict=True):
            if position < piece.position:
                return _Step(piece.position, is_padding=True)
            if position < piece.stop:
                return _Step(piece.stop, place, place.offset + position - piece.position)
        return _Step(layout.n_bytes, is_padding=True)

    async def _fetch(self, step: _Step, progress: Progress) -> None:
        start = self._file.n_bytes
        if step.is_padding:
            await self._write(bytes(step.stop - start))
            return
        if step.origin is not None:
            place, n_bytes = step.origin, step.stop - start
            chunks = self._sources.origin.read_range(
                place.url, step.origin_start, step.origin_start + n_bytes, place.file_bytes
            )
        else:
            chunks = self._sources.site.read_range(
                self._sources.slice_url, start, step.stop, self._layout.n_bytes, self._layout.etag
            )
        async with aclosing(chunks):
            await self._append(chunks, progress)

    async def _append(self, chunks: AsyncIterator[bytes], progress: Progress) -> None:
        """Append chunks as they come; those that came before an error are kept."""
        gathered = bytearray()
        try:
            async for chunk in chunks:
                gathered += chunk
                if len(gathered) >= WRITE_BYTES:
                    data, gathered = bytes(gathered), bytearray()
                    await self._write(data)
                    progress(self._file.n_bytes, self._layout.n_bytes)
        finally:
            self._file.append(bytes(gathered))
            progress(self._file.n_bytes, self._layout.n_bytes)

    async def _write(self, data: bytes) -> None:
        """Append in a thread; whoever cancels this finds the file at rest."""
        writing = asyncio.ensure_future(asyncio.to_thread(self._file.append, data))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise

    def _leave_origin(self, reason: Exception) -> None:
        log.warning("the origin is not used any more, the site is: %s", reason)
        self.use_origin = False


def check_room(path: Path, n_bytes: int) -> None:
    """Raises DiskFullError when the disk has fewer bytes free, before any is fetched."""
    n_free = shutil.disk_usage(path.parent).free
    if n_free < n_bytes:
        raise DiskFullError(f"{path}: the rest of the slice needs {n_bytes} bytes, the disk has {n_free} free")
