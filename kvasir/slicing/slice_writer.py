"""Writes a planned slice into a file: complete under its name, or not there at all.

It writes to a temporary name beside the target and renames at the end; after an error nothing is left behind. It never
has more than a megabyte in memory.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from kvasir.errors import GGUFError, SliceError
from kvasir.slicing.slice_plan import ByteRange, SlicePlan

Progress = Callable[[int, int], None]  # bytes written so far, bytes in all

# Written by the megabyte, the file lies in the system's cache in large pieces. Copied from file to file by Linux, which
# takes 64 KiB at a time and longer in all, it lies in small ones, and computing from these costs 5 % more.
COPY_BYTES = 1 << 20


def write_slice(plan: SlicePlan, path: Path | str, progress: Progress | None = None) -> None:
    """Write the slice to `path`, replacing a file of that name only when the new one is complete on disk.

    `progress` gets the bytes written so far, which reach `plan.n_bytes`. Raises SliceError when the disk is full or
    the target cannot be written or is one of the model's own files, GGUFError when the model's files have changed.
    """
    path = Path(path)
    _check_target(plan, path)
    temporary = path.with_name(f".kvasir-{secrets.token_hex(6)}.partial")
    try:
        with cast(BinaryIO, temporary.open("xb", buffering=0)) as target:
            _write(plan, target, progress or _no_progress)
            os.fsync(target.fileno())
        temporary.replace(path)
    except OSError as error:
        raise SliceError(_reason(error, plan, path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _check_target(plan: SlicePlan, path: Path) -> None:
    if path.is_dir():
        raise SliceError(f"{path} is a directory; give the slice a file name")
    if not path.parent.is_dir():
        raise SliceError(f"the directory {path.parent} does not exist; make it first, or name another")
    if path.exists() and any(part.path.exists() and path.samefile(part.path) for part in plan.parts):
        raise SliceError(f"{path} is a file of the model itself; write the slice under another name")
    n_free = shutil.disk_usage(path.parent).free
    if n_free < plan.n_bytes:
        raise SliceError(f"{path}: the slice needs {plan.n_bytes} bytes, the disk has {n_free} free")


def _reason(error: OSError, plan: SlicePlan, path: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{path}: the disk is full; the slice needs {plan.n_bytes} bytes"
    return f"{path}: the slice cannot be written ({error})"


def _no_progress(done: int, total: int) -> None:
    """Progress that nobody watches."""


def _write(plan: SlicePlan, target: BinaryIO, progress: Progress) -> None:
    _write_all(target, plan.header)
    progress(len(plan.header), plan.n_bytes)
    for item in plan.byte_ranges:
        target.seek(item.position)
        with plan.open_part(item.part) as source:
            _copy_range(item, source, target, lambda done: progress(done, plan.n_bytes))
    target.truncate(plan.n_bytes)
    progress(plan.n_bytes, plan.n_bytes)


def _copy_range(item: ByteRange, source: BinaryIO, target: BinaryIO, report: Callable[[int], None]) -> None:
    """Copy one range to `target`'s position, which is `item.position`."""
    source.seek(item.offset)
    done = 0
    while done < item.n_bytes:
        piece = source.read(min(COPY_BYTES, item.n_bytes - done))
        if not piece:
            at, missing = item.offset + done, item.n_bytes - done
            raise GGUFError(f"the model's file ended at byte {at}, {missing} bytes early, while it was copied")
        _write_all(target, piece)
        done += len(piece)
        report(item.position + done)


def _write_all(target: BinaryIO, data: bytes) -> None:
    """Unbuffered files may write less than they are given: write on until all is there."""
    view = memoryview(data)
    while view:
        n_written = target.write(view)
        if not n_written:
            raise SliceError(f"writing stopped {len(view)} bytes early")
        view = view[n_written:]
