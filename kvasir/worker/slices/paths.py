"""The files of one slice in a worker's cache: the complete slice, the partial one, and the site's manifest.

`download` appends to the partial file, `repair` repairs it, and `store` renames it once every byte is verified. The
name of a slice is derived from its model and experts, so that a restarted worker finds it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from kvasir.errors import DownloadError
from kvasir.experts import ExpertRange

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FINGERPRINT = re.compile(r"[0-9a-f]{64}", re.ASCII)


class DiskFullError(DownloadError):
    """The disk, a quota or a limit has no room for the rest of a slice; the bytes so far are kept."""


def write_error(path: Path, error: OSError) -> DownloadError:
    """Return the error for a failed write."""
    if error.errno in FULL:
        return DiskFullError(
            f"{path}: no room for the rest of the slice ({error.strerror}); free some space, and the download resumes"
        )
    return DownloadError(f"{path}: the slice cannot be written ({error})")


@dataclass(frozen=True, slots=True)
class SlicePaths:
    """The paths of a slice's files."""

    complete: Path  # every expert verified
    partial: Path
    state: Path  # JSON: the entity tag of the slice that the partial file belongs to
    manifest: Path  # as the site sent it

    @classmethod
    def of(cls, directory: Path, fingerprint: str, ranges: tuple[ExpertRange, ...]) -> SlicePaths:
        """Return the paths for these experts (merged ranges) of this model.

        Raises DownloadError for an invalid fingerprint: it comes from the site and becomes a part of the names.
        """
        if not _FINGERPRINT.fullmatch(fingerprint):
            raise DownloadError(f"the model's fingerprint is {fingerprint[:80]!r}; 64 hex digits are needed")
        text = ",".join(f"{item.layer}:{item.start}-{item.stop}" for item in ranges)
        stem = f"{fingerprint[:16]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        return cls.named(directory, stem)

    @classmethod
    def named(cls, directory: Path, stem: str) -> SlicePaths:
        """Return the paths of the files with this stem."""
        endings = (".gguf", ".partial", ".partial.json", ".manifest.json")
        return cls(*(directory / f"{stem}{ending}" for ending in endings))

    @property
    def all(self) -> tuple[Path, ...]:
        """Return all paths."""
        return self.complete, self.partial, self.state, self.manifest

    def begun_etag(self) -> str:
        """Return the entity tag of the slice that the partial file belongs to, or "" if there is nothing to resume."""
        try:
            content = json.loads(self.state.read_bytes())
        except (OSError, ValueError):
            return ""
        etag = content.get("etag") if isinstance(content, dict) else None
        return etag if isinstance(etag, str) and self.partial.exists() else ""

    def begin(self, etag: str) -> None:
        """Start an empty partial file of the slice with this tag. Raises DownloadError if it cannot be written."""
        try:
            self.partial.unlink(missing_ok=True)
            write_whole(self.state, json.dumps({"etag": etag}).encode())
            self.partial.touch()
        except OSError as error:
            raise write_error(self.partial, error) from error


class PartialFile:
    """The open partial file. Writes are complete or raise; a failed write leaves no hole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
            self.n_bytes = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise write_error(path, error) from error

    def append(self, data: bytes) -> None:
        """Write at the end. Raises DiskFullError or DownloadError; the bytes that fitted stay."""
        self.write_at(self.n_bytes, data)

    def write_at(self, position: int, data: bytes) -> None:
        """Write at a position in the file or at its end."""
        view = memoryview(data)
        try:
            while view:
                n_written = self._write(position, view)
                if not n_written:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                position += n_written
                view = view[n_written:]
                self.n_bytes = max(self.n_bytes, position)
        except OSError as error:
            raise write_error(self.path, error) from error

    def _write(self, position: int, data: memoryview) -> int:
        """Write once and return the number of bytes written, which may be fewer than given."""
        os.lseek(self._descriptor, position, os.SEEK_SET)
        return os.write(self._descriptor, data)

    def truncate(self, n_bytes: int) -> None:
        """Cut the file to `n_bytes`."""
        os.ftruncate(self._descriptor, n_bytes)
        self.n_bytes = n_bytes

    def sync(self) -> None:
        """Wait until the data is on the disk."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise write_error(self.path, error) from error

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def write_whole(path: Path, data: bytes) -> None:
    """Replace a small file atomically. Raises OSError."""
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
