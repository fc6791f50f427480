"""A cache directory of slices within a byte budget: its entries, locks on slices in use, and eviction.

`slices.store` owns one. Each slice has a lock file, which the operating system unlocks when a process ends. So several
workers may share a directory, and a slice that any of them uses is never evicted.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from kvasir.errors import DownloadError
from kvasir.worker.slices.paths import SlicePaths

try:
    import fcntl
except ImportError:  # Windows: one worker per directory
    fcntl = None  # type: ignore[assignment]


class CacheFullError(DownloadError):
    """The cache's budget has no room for a slice in addition to those in use."""


class SliceLock:
    """The lock of a slice in use: exclusive for its download, shared by those that serve it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self, is_shared: bool = False) -> bool:
        """Try to lock and return whether that worked. A second call changes between exclusive and shared."""
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        if fcntl is None:
            return True
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            self.release()
            return False
        return True

    def release(self) -> None:
        """Unlock. May be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The files of one slice."""

    paths: SlicePaths
    n_bytes: int
    used_ns: int  # when it was last used


class SliceCache:
    """One directory, which is created if it does not exist."""

    def __init__(self, directory: Path, budget_bytes: int) -> None:
        self.directory = directory
        self.budget_bytes = budget_bytes
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DownloadError(f"the cache {directory} cannot be created ({error})") from error

    def lock(self, paths: SlicePaths) -> SliceLock:
        """Return the lock of a slice, not yet taken."""
        return SliceLock(paths.complete.with_suffix(".lock"))

    def entries(self) -> list[CacheEntry]:
        """Return the entries, least recently used first."""
        stems = {path.name.split(".")[0] for path in self.directory.iterdir() if path.suffix in (".gguf", ".partial")}
        found = []
        for stem in stems:
            paths = SlicePaths.named(self.directory, stem)
            n_bytes, used_ns = 0, 0
            for path in paths.all:
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    n_bytes += status.st_size
                    used_ns = max(used_ns, status.st_mtime_ns)
            found.append(CacheEntry(paths, n_bytes, used_ns))
        return sorted(found, key=lambda entry: entry.used_ns)

    def make_room(self, paths: SlicePaths, n_bytes: int) -> None:
        """Evict until a slice of `n_bytes` in all fits; `n_bytes` includes the part that is on the disk already.

        Raises CacheFullError, before anything is evicted, if the slices in use leave no room for it.
        """
        others = [entry for entry in self.entries() if entry.paths != paths]
        free = [(entry, lock) for entry in others if (lock := self._lock_unused(entry)) is not None]
        try:
            held = sum(entry.n_bytes for entry in others) - sum(entry.n_bytes for entry, _ in free)
            if held + n_bytes > self.budget_bytes:
                raise CacheFullError(
                    f"the slice needs {n_bytes} bytes, the cache {self.directory} may hold {self.budget_bytes}, "
                    f"of which {held} are in use"
                )
            total = n_bytes + sum(entry.n_bytes for entry in others)
            for entry, _ in free:
                if total <= self.budget_bytes:
                    break
                self.remove(entry.paths)
                total -= entry.n_bytes
        finally:
            for _, lock in free:
                lock.release()

    def touch(self, paths: SlicePaths) -> None:
        """Mark a slice as used now."""
        with contextlib.suppress(OSError):
            os.utime(paths.manifest)

    def remove(self, paths: SlicePaths) -> None:
        """Delete the files of a slice except its lock file, which another process may have opened."""
        for path in paths.all:
            path.unlink(missing_ok=True)

    def _lock_unused(self, entry: CacheEntry) -> SliceLock | None:
        lock = self.lock(entry.paths)
        return lock if lock.take() else None
