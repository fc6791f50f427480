"""The store of a worker's slices: it downloads, verifies, keeps and evicts them. The agent enters here.

`obtain` returns a file in which every expert has the SHA-256 that the site's manifest states, even if the connection
was cut many times. Partial downloads are kept over restarts. A slice that stays broken or keeps changing is an error.
The rules are in docs/reference/slices.md.
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
from kvasir.slicing.budget import WORKER_OVERHEAD_BYTES
from kvasir.slicing.expert_ranges import merge_ranges
from kvasir.slicing.manifest import MANIFEST_MAX_BYTES
from kvasir.worker.slices.cache import SliceCache, SliceLock
from kvasir.worker.slices.download import Patience, Progress, SliceDownload, Sources, origin_is_right
from kvasir.worker.slices.http import RangeSource, SliceChangedError, TransferError
from kvasir.worker.slices.manifest import SliceManifest
from kvasir.worker.slices.paths import PartialFile, SlicePaths, write_error, write_whole
from kvasir.worker.slices.repair import BrokenSliceError, SliceRepair

MANIFEST_READ_S = 300.0  # the site hashes an expert while the worker waits for its first manifest
STARTS = 3  # of one slice from its first byte, if the site keeps changing it

log = logging.getLogger(__name__)


class DoesNotFitError(DownloadError):
    """These experts do not fit into the worker's memory; nothing was downloaded."""


@dataclass(frozen=True, slots=True)
class SliceOffer:
    """Experts of a model, and the absolute addresses of their slice and its manifest."""

    fingerprint: str
    ranges: tuple[ExpertRange, ...]
    slice_url: str
    manifest_url: str

    @classmethod
    def at(cls, site_url: str, fingerprint: str, ranges: Iterable[ExpertRange]) -> SliceOffer:
        """Use the routes that every site has (docs/reference/slices.md)."""
        merged = merge_ranges(ranges)
        experts = ",".join(f"{item.layer}:{item.start}-{item.stop}" for item in merged)
        base, tail = site_url.rstrip("/"), f"{fingerprint}?experts={experts}"
        return cls(fingerprint, merged, f"{base}/api/slices/{tail}", f"{base}/api/manifests/{tail}")


@dataclass(slots=True)
class HeldSlice:
    """A verified slice in use: it is not evicted before `release`. A context manager."""

    path: Path
    fingerprint: str
    ranges: tuple[ExpertRange, ...]
    n_bytes: int
    n_repaired: int  # bytes that were fetched again
    _lock: SliceLock = field(repr=False)

    def release(self) -> None:
        """Allow eviction. May be called again."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of a store. `open_file` is for tests."""

    cache_bytes: int
    patience: Patience = field(default_factory=Patience)
    open_file: Callable[[Path], PartialFile] = PartialFile


class SliceStore:
    """The slices in one directory. `client` comes from `http.make_client`; the caller closes it."""

    def __init__(self, directory: Path, client: httpx.AsyncClient, token: str, options: StoreOptions) -> None:
        self._cache = SliceCache(directory, options.cache_bytes)
        self._options = options
        self._site = RangeSource(client, token)
        self._origin = RangeSource(client)

    async def obtain(
        self, offer: SliceOffer, progress: Progress | None = None, memory_bytes: int | None = None
    ) -> HeldSlice:
        """Return these experts as a verified file, from the cache or the site. May be cancelled and called again.

        `progress` gets the bytes on the disk and the bytes in all. Raises DoesNotFitError if the experts need more than
        `memory_bytes`, CacheFullError, DiskFullError, or another DownloadError.
        """
        offer = replace(offer, ranges=merge_ranges(offer.ranges))
        paths = SlicePaths.of(self._cache.directory, offer.fingerprint, offer.ranges)
        lock = self._cache.lock(paths)
        if not lock.take():
            return await self._shared(offer, paths, lock, memory_bytes)
        try:
            held = await self._obtain(offer, paths, lock, progress or _no_progress, memory_bytes)
            if not lock.take(is_shared=True):
                raise DownloadError(f"{paths.complete.name}: another worker removed it")
        except BaseException:
            lock.release()
            raise
        return held

    async def _shared(
        self, offer: SliceOffer, paths: SlicePaths, lock: SliceLock, memory_bytes: int | None
    ) -> HeldSlice:
        """Use a slice that another worker has verified; raise TransferError for one that it still downloads."""
        if not lock.take(is_shared=True) or not paths.complete.exists():
            lock.release()
            raise TransferError(f"{paths.complete.name}: another worker is downloading it into this cache", 5.0)
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
            _reopen(paths)  # verify it again: disks fail
        saved = self._saved_layout(offer, paths) if paths.partial.exists() else None
        for _ in range(STARTS):
            layout = saved if _is_whole(paths, saved) else None
            layout = layout or await self._fetched_layout(offer, paths)
            _check_memory(offer, layout, memory_bytes)
            try:
                n_repaired = await self._fill(offer, paths, layout, progress)
            except SliceChangedError as error:
                log.warning("the download starts again at the first byte: %s", error)
                saved = None
                paths.state.unlink(missing_ok=True)
                continue
            return HeldSlice(paths.complete, offer.fingerprint, offer.ranges, layout.n_bytes, n_repaired, lock)
        raise DownloadError(f"{offer.slice_url}: the site changed this slice {STARTS} times during the download")

    async def _fill(self, offer: SliceOffer, paths: SlicePaths, layout: SliceManifest, progress: Progress) -> int:
        """Complete, verify and rename the partial file; return how many bytes were repaired."""
        if paths.begun_etag() != layout.etag:
            if paths.partial.exists() and paths.partial.stat().st_size:
                log.warning("%s: the site's slice has changed; the download starts again", paths.partial.name)
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
            paths.manifest.unlink(missing_ok=True)  # the manifest may be wrong: fetch it again next time
            raise
        await asyncio.to_thread(_publish, paths)
        self._cache.touch(paths)
        return n_repaired

    async def _fetched_layout(self, offer: SliceOffer, paths: SlicePaths | None = None) -> SliceManifest:
        """Fetch the manifest from the site and keep it beside the slice."""
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
    weights = sum(item.n_experts * layout.expert_bytes(item.layer) for item in offer.ranges)  # merged ranges
    needed = WORKER_OVERHEAD_BYTES + weights
    if memory_bytes is not None and needed > memory_bytes:
        raise DoesNotFitError(f"these experts need {needed} bytes of memory; the worker may use {memory_bytes}")


def _is_whole(paths: SlicePaths, layout: SliceManifest | None) -> bool:
    """Return whether the download is complete, so that the site is needed only for repairs."""
    if layout is None or paths.begun_etag() != layout.etag:
        return False
    return paths.partial.stat().st_size == layout.n_bytes


def _reopen(paths: SlicePaths) -> None:
    """Turn a complete slice back into a partial file whose bytes are all there but not verified."""
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
    """Ignore progress."""
