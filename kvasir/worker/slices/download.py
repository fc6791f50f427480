"""The download of a slice into its partial file, resumed at the byte where the last attempt ended.

`slices.store` calls it. The header always comes from the site. Weights come from the origin if the manifest names one
that serves the right bytes, and from the site after it fails. After a cut, a timeout or a busy server the download
waits and tries again; only attempts that bring no byte count as failed. `repair` verifies the result.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from kvasir.errors import DownloadError
from kvasir.experts import ExpertRange
from kvasir.slicing.manifest import ExpertKey
from kvasir.worker.slices.http import RangeSource, SourceRefusedError, TransferError
from kvasir.worker.slices.manifest import OriginPiece, SliceManifest
from kvasir.worker.slices.paths import DiskFullError, PartialFile

WRITE_BYTES = 1 << 20  # gathered before a thread writes them
ORIGIN_ATTEMPTS = 2  # without a byte, before the site is used instead

Progress = Callable[[int, int], None]  # bytes on the disk, bytes in all
Pause = Callable[[float], Awaitable[None]]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Patience:
    """The waits between failed attempts: they double, and are shortened at random so that workers spread out."""

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
    """The servers that bytes may come from."""

    site: RangeSource
    slice_url: str
    origin: RangeSource  # gets no token


@dataclass(frozen=True, slots=True)
class _Step:
    """The next bytes: up to `stop`, from one address."""

    stop: int
    origin: OriginPiece | None = None
    origin_start: int = 0
    is_padding: bool = False


class SliceDownload:
    """The download of one slice. `run` may be cancelled at any moment; a new download resumes it."""

    def __init__(self, sources: Sources, layout: SliceManifest, file: PartialFile, patience: Patience) -> None:
        self._sources = sources
        self._layout = layout
        self._file = file
        self._patience = patience
        self._origin_failures = 0
        self.use_origin = bool(layout.origin)

    async def run(self, progress: Progress) -> None:
        """Fetch the missing bytes.

        Raises SliceChangedError if the site now has other bytes, DiskFullError, or DownloadError after too many
        attempts in a row without a byte.
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
                raise DownloadError(f"{n_failed} attempts in a row brought no byte: {failure}") from failure
            if step.origin is not None and self._file.n_bytes == before:
                self._origin_failures += 1
                if self._origin_failures >= ORIGIN_ATTEMPTS:
                    self._leave_origin(failure)
            log.info("the download was cut at byte %d and resumes there: %s", self._file.n_bytes, failure)
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
        """Append chunks as they arrive; those before an error are kept."""
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
        """Append in a thread. A cancellation waits for the write, so the file is not written to afterwards."""
        writing = asyncio.ensure_future(asyncio.to_thread(self._file.append, data))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise

    def _leave_origin(self, reason: Exception) -> None:
        log.warning("the origin failed, the site is used instead: %s", reason)
        self.use_origin = False


def check_room(path: Path, n_bytes: int) -> None:
    """Raise DiskFullError if the disk has fewer than `n_bytes` free."""
    n_free = shutil.disk_usage(path.parent).free
    if n_free < n_bytes:
        raise DiskFullError(f"{path}: the rest of the slice needs {n_bytes} bytes, the disk has {n_free} free")


async def origin_is_right(source: RangeSource, layout: SliceManifest, ranges: tuple[ExpertRange, ...]) -> bool:
    """Return whether the origin serves the bytes that the manifest describes: fetch and hash the first expert there.

    Every failure is logged as a warning and returns False.
    """
    first = ranges[0]
    wanted = layout.manifest.experts[ExpertKey(first.layer, first.start)]
    digest = hashlib.sha256()
    try:
        for place, n_bytes in _first_expert(layout, ranges):
            chunks = source.read_range(place.url, place.offset, place.offset + n_bytes, place.file_bytes)
            async with aclosing(chunks):
                async for chunk in chunks:
                    digest.update(chunk)
    except DownloadError as error:
        log.warning("the origin is not used: %s", error)
        return False
    if digest.hexdigest() != wanted.sha256:
        log.warning(
            "the origin %s is not used: expert %d of layer %d has SHA-256 %s there, the manifest says %s",
            *(layout.origin[0].url, first.start, first.layer, digest.hexdigest(), wanted.sha256),
        )
        return False
    return True


def _first_expert(layout: SliceManifest, ranges: tuple[ExpertRange, ...]) -> list[tuple[OriginPiece, int]]:
    """Return the first expert's places. A layer's pieces are ordered by tensor, and within a tensor by range."""
    in_layer = list(takewhile(lambda item: item.layer == ranges[0].layer, ranges))
    layer_bytes = sum(digest.n_bytes for key, digest in layout.manifest.experts.items() if key.layer == ranges[0].layer)
    places = []
    for number, piece in enumerate(layout.pieces):
        if layer_bytes <= 0:
            break
        layer_bytes -= piece.n_bytes
        if number % len(in_layer) == 0:
            places.append((layout.origin[number], piece.n_bytes // in_layer[0].n_experts))
    return places
