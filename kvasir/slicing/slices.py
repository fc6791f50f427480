"""Slices: the bytes of some experts of a model as a GGUF file of their own, planned and written.

`kvasir slice`, slice servers, the market and the backbone enter here; `slice_file` reads slices back. A plan knows the
slice's exact size and needs the model's header only: no weight is read, dequantised or repacked to make it. A server
can answer byte ranges of a plan without a file.

A slice is a GGUF file of the model's architecture that holds expert tensors under their own names, with the expert
dimension cut down to the experts it has, and `kvasir.slice.*` metadata that says which those are. Several ranges of
one layer are joined in ascending order; local ids count through them.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, cast

from kvasir.errors import GGUFError, SliceError
from kvasir.experts import ExpertRange, LayerExperts
from kvasir.gguf.header import DEFAULT_ALIGNMENT, HeaderValue, TensorInfo, encode_header
from kvasir.gguf.index import GGUFIndex, PartFile
from kvasir.slicing.expert_ranges import check_ranges, merge_ranges
from kvasir.slicing.expert_tensors import find_expert_tensors, layer_experts
from kvasir.slicing.model_card import ModelCard

SLICE_VERSION = 1
READ_BYTES = 4 << 20

# A file written by the megabyte lies in the page cache in large pieces. Linux's copy from file to file works in pieces
# of 64 KiB: it takes longer, and computing from the smaller pieces of the page cache costs 5 % more.
COPY_BYTES = 1 << 20

Progress = Callable[[int, int], None]  # bytes written so far, bytes in all


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`n_bytes` bytes at `offset` of a model file, for `position` in the slice."""

    position: int
    part: int
    offset: int
    n_bytes: int

    @property
    def stop(self) -> int:
        """Return the first position in the slice after these bytes."""
        return self.position + self.n_bytes


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """A slice as its header and byte ranges of the model's files, with zero padding between the ranges."""

    header: bytes
    byte_ranges: tuple[ByteRange, ...]  # ascending by position
    n_bytes: int  # size of the whole slice
    parts: tuple[PartFile, ...]  # the model's files, indexed by `ByteRange.part`
    ranges: tuple[ExpertRange, ...]  # merged

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the slice's bytes from `start` up to `stop`, in pieces of at most READ_BYTES, from the model's files.

        Raises SliceError for a range outside the slice, GGUFError if a file is gone or has changed.
        """
        stop = self.n_bytes if stop is None else stop
        if not 0 <= start <= stop <= self.n_bytes:
            raise SliceError(f"bytes {start} to {stop} are not in a slice of {self.n_bytes} bytes")
        return self._pieces(start, stop)

    def _pieces(self, start: int, stop: int) -> Iterator[bytes]:
        position = start
        if position < len(self.header):
            yield self.header[position : min(stop, len(self.header))]
            position = min(stop, len(self.header))
        for item in self.byte_ranges:
            if item.stop <= position:
                continue
            if position >= stop:
                return
            if position < item.position:
                padding = min(item.position, stop) - position
                yield bytes(padding)
                position += padding
            yield from self._file_pieces(item, position, min(item.stop, stop))
            position = max(position, min(item.stop, stop))
        if position < stop:
            yield bytes(stop - position)

    def _file_pieces(self, item: ByteRange, start: int, stop: int) -> Iterator[bytes]:
        if start >= stop:
            return
        with self.open_part(item.part) as file:
            file.seek(item.offset + start - item.position)
            left = stop - start
            while left:
                piece = file.read(min(left, READ_BYTES))
                if not piece:
                    raise GGUFError(f"{self.parts[item.part].path} ended {left} bytes early while it was read")
                left -= len(piece)
                yield piece

    def open_part(self, part: int) -> BinaryIO:
        """Open a model file for reading. Raises GGUFError if it is gone or has changed since the plan was made."""
        planned = self.parts[part]
        try:
            file = cast(BinaryIO, planned.path.open("rb", buffering=0))
        except OSError as error:
            raise GGUFError(f"{planned.path}: cannot be opened: {error.strerror or error}") from error
        try:
            planned.check_unchanged(os.fstat(file.fileno()))
        except GGUFError:
            file.close()
            raise
        return file


def plan_slice(index: GGUFIndex, card: ModelCard, ranges: Sequence[ExpertRange]) -> SlicePlan:
    """Plan a slice of these experts (in any order; overlaps count once).

    Raises SliceError without ranges, or for a range that is not in the model.
    """
    if not ranges:
        raise SliceError("a slice needs at least one expert range")
    check_ranges(ranges, card)
    merged = merge_ranges(ranges)
    tensors = find_expert_tensors(index, card.n_layer)
    infos: list[TensorInfo] = []
    byte_ranges: list[ByteRange] = []
    data_bytes = 0
    for layer, group in groupby(merged, key=lambda item: item.layer):
        layer_ranges = tuple(group)
        for source in tensors[layer].all_tensors:
            data_bytes += -data_bytes % DEFAULT_ALIGNMENT
            infos.append(_cut_info(source, layer_ranges, data_bytes))
            for item in layer_ranges:
                expert_bytes = source.n_bytes // card.n_expert
                n_bytes = item.n_experts * expert_bytes
                byte_ranges.append(
                    ByteRange(data_bytes, source.part, source.offset + item.start * expert_bytes, n_bytes)
                )
                data_bytes += n_bytes
    header = encode_header(_slice_metadata(card, merged), infos)
    placed = tuple(replace(item, position=item.position + len(header)) for item in byte_ranges)
    n_bytes = len(header) + data_bytes + -data_bytes % DEFAULT_ALIGNMENT
    return SlicePlan(header, placed, n_bytes, index.part_files, merged)


def _cut_info(source: TensorInfo, ranges: tuple[ExpertRange, ...], offset: int) -> TensorInfo:
    n_local = sum(item.n_experts for item in ranges)
    n_bytes = source.n_bytes // source.shape[0] * n_local
    return replace(source, shape=(n_local, *source.shape[1:]), offset=offset, n_bytes=n_bytes)


def _slice_metadata(card: ModelCard, ranges: tuple[ExpertRange, ...]) -> dict[str, HeaderValue]:
    return {
        "general.architecture": card.architecture,
        "general.name": f"{card.name}: {sum(item.n_experts for item in ranges)} experts",
        "kvasir.slice.version": SLICE_VERSION,
        "kvasir.slice.model": card.name,
        "kvasir.slice.fingerprint": card.fingerprint,
        "kvasir.slice.n_layer": card.n_layer,
        "kvasir.slice.n_expert": card.n_expert,
        "kvasir.slice.d_model": card.d_model,
        "kvasir.slice.d_ff": card.d_ff,
        "kvasir.slice.layers": [item.layer for item in ranges],
        "kvasir.slice.starts": [item.start for item in ranges],
        "kvasir.slice.stops": [item.stop for item in ranges],
    }


def write_slice(plan: SlicePlan, path: Path | str, progress: Progress | None = None) -> None:
    """Write the slice to `path`, replacing a file of that name only once the new one is complete on disk.

    The bytes go to a temporary name beside the target, at most a megabyte in memory at a time; an error leaves nothing
    behind. `progress` gets the bytes written so far, which reach `plan.n_bytes`. Raises SliceError if the disk is full,
    or the target cannot be written or is one of the model's own files; GGUFError if the model's files have changed.
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
    """Ignore progress."""


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
    """Copy one range to `target`'s current position, which is `item.position`."""
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
    """Write all of `data`: an unbuffered file may write less at once."""
    view = memoryview(data)
    while view:
        n_written = target.write(view)
        if not n_written:
            raise SliceError(f"writing stopped {len(view)} bytes early")
        view = view[n_written:]


def model_experts(index: GGUFIndex, card: ModelCard, layer: int) -> LayerExperts:
    """Return all experts of one layer of a model as views of its mapped file; local ids are expert ids.

    Raises SliceError if the layer has no experts.
    """
    card.moe_layer(layer)
    tensors = find_expert_tensors(index, card.n_layer).get(layer)
    if tensors is None:
        raise SliceError(f"layer {layer} has experts in the model card, but not in this file")
    return layer_experts(index, tensors)
