"""The files of one slice in a worker's cache: the slice, what has come of it, and what the site said of it.

`download` appends to the partial file, `repair` mends it, `store` renames it when every byte has been verified. The
name of a slice is made of its model and experts, so that a restarted worker finds it.
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
    """The disk, a quota or a limit has no room for the rest of a slice; what has come is kept."""


def write_error(path: Path, error: OSError) -> DownloadError:
    """What to say of a write that failed."""
    if error.errno in FULL:
        return DiskFullError(
            f"{path}: there is no room for the rest of the slice ({error.strerror}); make room, and it is resumed"
        )
    return DownloadError(f"{path}: the slice cannot be written ({error})")


@dataclass(frozen=True, slots=True)
class SlicePaths:
    """Where a slice's files are."""

    complete: Path  # every expert verified
    partial: Path
    state: Path  # JSON: what the partial file is a part of
    manifest: Path  # as the site sent it

    @classmethod
    def of(cls, directory: Path, fingerprint: str, ranges: tuple[ExpertRange, ...]) -> SlicePaths:
        """Names for these experts (merged ranges) of this model.

        Raises DownloadError for a fingerprint that is none: it came from the site, and is a part of the names.
        """
        if not _FINGERPRINT.fullmatch(fingerprint):
            raise DownloadError(f"the model's fingerprint is {fingerprint[:80]!r}; 64 hex digits are needed")
        text = ",".join(f"{item.layer}:{item.start}-{item.stop}" for item in ranges)
        stem = f"{fingerprint[:16]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        return cls.named(directory, stem)

    @classmethod
    def named(cls, directory: Path, stem: str) -> SlicePaths:
        """The files that belong together under a stem."""
        endings = (".gguf", ".partial", ".partial.json", ".manifest.json")
        return cls(*(directory / f"{stem}{ending}" for ending in endings))

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file that may be there."""
        return self.complete, self.partial, self.state, self.manifest

    def begun_etag(self) -> str:
        """The entity tag of what the partial file is a part of, or "" when there is nothing to go on with."""
        try:
            content = json.loads(self.state.read_bytes())
        except (OSError, ValueError):
            return ""
        etag = content.get("etag") if isinstance(content, dict) else None
        return etag if isinstance(etag, str) and self.partial.exists() else ""

    def begin(self, etag: str) -> None:
        """Start from nothing, as a part of the slice with this tag. Raises DownloadError when the disk refuses."""
        try:
            self.partial.unlink(missing_ok=True)
            write_whole(self.state, json.dumps({"etag": etag}).encode())
            self.partial.touch()
        except OSError as error:
            raise write_error(self.partial, error) from error


class PartialFile:
    """The partial file, open. Writes reach the end or raise; a write that fails leaves no hole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
            self.n_bytes = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise write_error(path, error) from error

    def append(self, data: bytes) -> None:
        """Write at the end. Raises DiskFullError or DownloadError; what fitted stays."""
        self.write_at(self.n_bytes, data)

    def write_at(self, position: int, data: bytes) -> None:
        """Write somewhere in the file, or at its end."""
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
        """Bytes written, maybe fewer than given."""
        os.lseek(self._descriptor, position, os.SEEK_SET)
        return os.write(self._descriptor, data)

    def truncate(self, n_bytes: int) -> None:
        """Forget what lies behind."""
        os.ftruncate(self._descriptor, n_bytes)
        self.n_bytes = n_bytes

    def sync(self) -> None:
        """Wait until the disk has it."""
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
    """Replace a small file: complete, or as it was. Raises OSError."""
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
