"""A worker's slices: fetched, verified, kept and evicted. The front door for the agent.

`obtain` returns a file in which every expert has the SHA-256 that the site's manifest gives, however often the way
there was cut. What has come is kept over restarts; a slice that stays broken or changes is an error that says so. The
rules are in docs/reference/slices.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from kvasir.errors import DownloadError
from kvasir.experts import ExpertRange
from kvasir.slicing.expert_ranges import merge_ranges
from kvasir.slicing.manifest import MANIFEST_MAX_BYTES
from kvasir.worker.slices.budget import memory_needed
from kvasir.worker.slices.cache import SliceCache, SliceLock
from kvasir.worker.slices.download import Patience, Progress, SliceDownload, Sources
from kvasir.worker.slices.http import RangeSource, SliceChangedError, TransferError
from kvasir.worker.slices.manifest import SliceManifest
from kvasir.worker.slices.origin import origin_is_right
from kvasir.worker.slices.paths import PartialFile, SlicePaths, write_error, write_whole
from kvasir.worker.slices.repair import BrokenSliceError, SliceRepair

MANIFEST_READ_S = 300.0  # the first manifest of an expert is hashed while the worker waits
STARTS = 3  # of one slice from its first byte, when the site keeps changing it

log = logging.getLogger(__name__)


class DoesNotFitError(DownloadError):
    """The worker's memory has no room for these experts; nothing was downloaded."""


@dataclass(frozen=True, slots=True)
class SliceOffer:
    """Which experts of which model, and where the site has them. Addresses are absolute."""

    fingerprint: str
    ranges: tuple[ExpertRange, ...]
    slice_url: str
    manifest_url: str

    @classmethod
    def at(cls, site_url: str, fingerprint: str, ranges: Iterable[ExpertRange]) -> SliceOffer:
        """These experts at the routes that every site has (docs/reference/slices.md)."""
        merged = merge_ranges(ranges)
        experts = ",".join(f"{item.layer}:{item.start}-{item.stop}" for item in merged)
        base, tail = site_url.rstrip("/"), f"{fingerprint}?experts={experts}"
        return cls(fingerprint, merged, f"{base}/api/slices/{tail}", f"{base}/api/manifests/{tail}")


@dataclass(slots=True)
class HeldSlice:
    """A verified slice in use: it is not evicted until `release`, or the end of a `with`."""

    path: Path
    fingerprint: str
    ranges: tuple[ExpertRange, ...]
    n_bytes: int
    n_repaired: int  # bytes that had to be fetched again
    _lock: SliceLock = field(repr=False)

    def release(self) -> None:
        """It is not used any more. May be called again."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store works. `open_file` is for tests."""

    cache_bytes: int
    patience: Patience = field(default_factory=Patience)
    open_file: Callable[[Path], PartialFile] = PartialFile


class SliceStore:
    """The slices under one directory. `client` comes from `slice_http.make_client`; the caller closes it."""

    def __init__(self, directory: Path, client: httpx.AsyncClient, token: str, options: StoreOptions) -> None:
        self._cache = SliceCache(directory, options.cache_bytes)
        self._options = options
        self._site = RangeSource(client, token)
        self._origin = RangeSource(client)

    async def obtain(
        self, offer: SliceOffer, progress: Progress | None = None, memory_bytes: int | None = None
    ) -> HeldSlice:
        """These experts as a verified file, from the cache or from the site. May be cancelled and called again.

        `progress` gets the bytes that are there and those of the whole. Raises DoesNotFitError when `memory_bytes` are
        too few for them, CacheFullError, DiskFullError, or another DownloadError that says what went wrong.
        """
        offer = replace(offer, ranges=merge_ranges(offer.ranges))
        paths = SlicePaths.of(self._cache.directory, offer.fingerprint, offer.ranges)
        lock = self._cache.lock(paths)
        if not lock.take():
            return await self._shared(offer, paths, lock, memory_bytes)
        try:
            held = await self._obtain(offer, paths, lock, progress or _no_progress, memory_bytes)
            if not lock.take(is_shared=True):
                raise DownloadError(f"{paths.complete.name}: another worker took it away")
        except BaseException:
            lock.release()
            raise
        return held

    async def _shared(
        self, offer: SliceOffer, paths: SlicePaths, lock: SliceLock, memory_bytes: int | None
    ) -> HeldSlice:
        """A slice that others serve already is theirs to verify; one that others download is not there yet."""
        if not lock.take(is_shared=True) or not paths.complete.exists():
            lock.release()
            raise TransferError(f"{paths.complete.name}: another worker downloads it into this cache now", 5.0)
        try:
            layout = self._saved_layout(offer, paths) or await self._fetched_layout(offer)
            _check_memory(offer, layout, memory_bytes)
        except BaseException:
            lock.release()
            raise
        return HeldSlice(paths.complete, offer.fingerprint, offer.ranges, layout.n_bytes, 0, lock)

    async def _obtain(
        self, offer: SliceOffer, paths: SlicePaths, lock: SliceLock, progress: Progress, memory_bytes: int | None
    ) -> HeldSlice:
        if paths.complete.exists():
            _reopen(paths)  # it is verified again: disks forget
        saved = self._saved_layout(offer, paths) if paths.partial.exists() else None
        for _ in range(STARTS):
            layout = saved if _is_whole(paths, saved) else None
            layout = layout or await self._fetched_layout(offer, paths)
            _check_memory(offer, layout, memory_bytes)
            try:
                n_repaired = await self._fill(offer, paths, layout, progress)
            except SliceChangedError as error:
                log.warning("the slice is fetched from its first byte: %s", error)
                saved = None
                paths.state.unlink(missing_ok=True)
                continue
            return HeldSlice(paths.complete, offer.fingerprint, offer.ranges, layout.n_bytes, n_repaired, lock)
        raise DownloadError(f"{offer.slice_url}: the site changed this slice {STARTS} times while it was fetched")

    async def _fill(self, offer: SliceOffer, paths: SlicePaths, layout: SliceManifest, progress: Progress) -> int:
        """Make the partial file whole and right, and give it its name. Returns the bytes that were mended."""
        if paths.begun_etag() != layout.etag:
            if paths.partial.exists() and paths.partial.stat().st_size:
                log.warning("%s: the site has other bytes than those begun with; it starts again", paths.partial.name)
            paths.begin(layout.etag)
        self._cache.make_room(paths, layout.n_bytes)
        sources = Sources(self._site, offer.slice_url, self._origin)
        with self._options.open_file(paths.partial) as file:
            if file.n_bytes > layout.n_bytes:
                file.truncate(layout.n_bytes)
            download = SliceDownload(sources, layout, file, self._options.patience)
            if download.use_origin and file.n_bytes < layout.n_bytes:
                download.use_origin = await origin_is_right(self._origin, layout, offer.ranges)
            await download.run(progress)
        repair = SliceRepair(paths.partial, layout, offer.ranges, sources, self._options.patience)
        try:
            n_repaired = await repair.run()
        except BrokenSliceError:
            paths.manifest.unlink(missing_ok=True)  # it may be the manifest that is wrong: ask anew next time
            raise
        await asyncio.to_thread(_publish, paths)
        self._cache.touch(paths)
        return n_repaired

    async def _fetched_layout(self, offer: SliceOffer, paths: SlicePaths | None = None) -> SliceManifest:
        """What the site says now; kept beside the slice."""
        n_failed = 0
        while True:
            try:
                body = await self._site.read_all(offer.manifest_url, MANIFEST_MAX_BYTES, MANIFEST_READ_S)
                break
            except TransferError as error:
                n_failed += 1
                if n_failed >= self._options.patience.attempts:
                    raise
                await self._options.patience.wait(n_failed, error.retry_after_s)
        layout = SliceManifest.parse(body, offer.fingerprint, offer.ranges)
        if paths is not None:
            try:
                write_whole(paths.manifest, body)
            except OSError as error:
                raise write_error(paths.manifest, error) from error
        return layout

    def _saved_layout(self, offer: SliceOffer, paths: SlicePaths) -> SliceManifest | None:
        with suppress(OSError, DownloadError):
            return SliceManifest.parse(paths.manifest.read_bytes(), offer.fingerprint, offer.ranges)
        return None


def _check_memory(offer: SliceOffer, layout: SliceManifest, memory_bytes: int | None) -> None:
    needed = memory_needed(offer.ranges, layout.expert_bytes)
    if memory_bytes is not None and needed > memory_bytes:
        raise DoesNotFitError(f"these experts need {needed} bytes of memory, the worker may take {memory_bytes}")


def _is_whole(paths: SlicePaths, layout: SliceManifest | None) -> bool:
    """Whether all bytes are there, so that the site need not be asked unless some are broken."""
    if layout is None or paths.begun_etag() != layout.etag:
        return False
    return paths.partial.stat().st_size == layout.n_bytes


def _reopen(paths: SlicePaths) -> None:
    """Treat a finished slice as one whose bytes are all there and not yet verified."""
    try:
        paths.complete.replace(paths.partial)
    except OSError as error:
        raise write_error(paths.partial, error) from error


def _publish(paths: SlicePaths) -> None:
    try:
        with paths.partial.open("rb+", buffering=0) as file:
            os.fsync(file.fileno())
        paths.partial.replace(paths.complete)
    except OSError as error:
        raise write_error(paths.complete, error) from error


def _no_progress(done: int, total: int) -> None:
    """Progress that nobody watches."""
