"""Batches of receipts on disk until SQL has them: one file for each backbone process, one checked line for each batch.

`receipt_flush` owns one. A line is on disk before its batch is sent to SQL, so a process may be killed at any time. Its
file is locked while the process lives; other processes adopt the file of a dead one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from market.ledger.work_batch import WorkBatch, WorkError

logger = logging.getLogger(__name__)

MOST_BYTES = 16 << 20
_SUFFIX = ".jsonl"
_CHECK_LENGTH = 16


class SpoolFullError(OSError):
    """The file has its maximum size: SQL has accepted nothing for a long time."""


class ReceiptSpool:
    """This process's file in `directory`. Used by one thread at a time."""

    def __init__(self, directory: Path, owner: str, most_bytes: int = MOST_BYTES) -> None:
        """Create the file. `owner` is this backbone's unique id. Raises OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._path = directory / f"{owner}{_SUFFIX}"
        self._most_bytes = most_bytes
        self._file = _open_locked(self._path)
        self._n_bytes = os.fstat(self._file).st_size

    def append(self, batch: WorkBatch) -> None:
        """Write a batch and sync it to disk. If it raises OSError, nothing was written."""
        line = _line(batch)
        if self._n_bytes + len(line) > self._most_bytes:
            raise SpoolFullError(f"{self._path} has {self._n_bytes} bytes; at most {self._most_bytes} are allowed")
        try:
            written = os.pwrite(self._file, line, self._n_bytes)
            if written < len(line):
                raise OSError(f"{self._path}: only {written} of {len(line)} bytes could be written")
            os.fsync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._n_bytes)
            raise
        self._n_bytes += len(line)

    def clear(self) -> None:
        """Empty the file when SQL has all batches. Raises OSError; recording a remaining line again changes nothing."""
        if self._n_bytes:
            os.ftruncate(self._file, 0)
            self._n_bytes = 0

    def refuse(self, batch: WorkBatch, reason: str) -> None:
        """Keep a batch that the ledger refuses in refused.txt, for the operator. Raises OSError."""
        with (self._directory / "refused.txt").open("a", encoding="utf-8") as refused:
            refused.write(f"{reason}\n{batch.to_json()}\n")
            refused.flush()
            os.fsync(refused.fileno())

    def orphans(self) -> Iterator[tuple[WorkBatch, ...]]:
        """Yield the batches of dead processes by file. A file is deleted when the caller asks for the next one."""
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            if path == self._path:
                continue
            try:
                handle = os.open(path, os.O_RDWR)
            except FileNotFoundError:  # another process has adopted it
                continue
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield read_batches(path)
                path.unlink(missing_ok=True)
            except BlockingIOError:  # its process is alive
                continue
            finally:
                os.close(handle)

    def close(self) -> None:
        """Close the file; delete it if it is empty."""
        if self._n_bytes == 0:
            self._path.unlink(missing_ok=True)
        os.close(self._file)


def read_batches(path: Path) -> tuple[WorkBatch, ...]:
    """Return the batches of a file. An unfinished last line is skipped; other broken lines are logged and kept.

    Raises OSError.
    """
    content = path.read_bytes()
    *lines, unfinished = content.split(b"\n")
    if unfinished:
        logger.warning("%s: the last line is unfinished, its process died while writing", path)
    batches, n_broken = [], 0
    for line in lines:
        try:
            batches.append(_batch(line))
        except (WorkError, UnicodeDecodeError) as error:
            n_broken += 1
            logger.error("%s: a line is broken: %s", path, error)
    if n_broken:
        path.with_suffix(".broken").write_bytes(content)
    return tuple(batches)


def _open_locked(path: Path) -> int:
    """Open and lock a file; try again if another process adopted and deleted it before the lock."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(handle).st_ino:
                return handle
        os.close(handle)


def _line(batch: WorkBatch) -> bytes:
    return f"{batch.digest[:_CHECK_LENGTH]} {batch.to_json()}\n".encode()


def _batch(line: bytes) -> WorkBatch:
    check, _, text = line.decode().partition(" ")
    if hashlib.sha256(text.encode()).hexdigest()[:_CHECK_LENGTH] != check:
        raise WorkError("the checksum is wrong")
    return WorkBatch.from_json(text)
