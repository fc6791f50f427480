"""A directory of slices within a budget of bytes: what is there, what is in use, and what goes when room is needed.

`slices.store` owns one. Each slice has a lock file that the operating system lets go of when a process ends, so several
workers may share a directory: what any of them uses is never evicted.
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
except ImportError:  # Windows: one worker for each directory there
    fcntl = None  # type: ignore[assignment]


class CacheFullError(DownloadError):
    """The cache's budget has no room for a slice beside those that are in use."""


class SliceLock:
    """A slice in use: held by the one that downloads it, or shared by those that serve it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self, is_shared: bool = False) -> bool:
        """Whether it could be had. Taking it again changes between held and shared."""
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
        """Let go. May be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """What is there of one slice."""

    paths: SlicePaths
    n_bytes: int
    used_ns: int  # when it was last used


class SliceCache:
    """The directory; made when it is not there."""

    def __init__(self, directory: Path, budget_bytes: int) -> None:
        self.directory = directory
        self.budget_bytes = budget_bytes
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DownloadError(f"the cache {directory} cannot be made ({error})") from error

    def lock(self, paths: SlicePaths) -> SliceLock:
        """The lock of a slice, not yet taken."""
        return SliceLock(paths.complete.with_suffix(".lock"))

    def entries(self) -> list[CacheEntry]:
        """What is there, the longest unused first."""
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
        """Evict until a slice of `n_bytes` fits, with what is there of it already counted in.

        Raises CacheFullError, before anything is evicted, when what is in use leaves no room for it.
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
        """Count a slice as used now."""
        with contextlib.suppress(OSError):
            os.utime(paths.manifest)

    def remove(self, paths: SlicePaths) -> None:
        """Delete all that is there of a slice, but its lock file: another process may have opened that."""
        for path in paths.all:
            path.unlink(missing_ok=True)

    def _lock_unused(self, entry: CacheEntry) -> SliceLock | None:
        lock = self.lock(entry.paths)
        return lock if lock.take() else None
