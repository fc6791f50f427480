"""The plan of a slice: which bytes of which model files make up a mini-GGUF of some experts.

`slice_writer` copies a plan into a file; a server can answer byte ranges of it without one. A plan knows the slice's
exact size and needs the model's header only: no weight is read, dequantised or repacked to make it.

A slice is a GGUF file of the model's architecture that holds expert tensors under their own names, with the expert
dimension cut down to the experts it has, and `kvasir.slice.*` metadata that says which those are. Several ranges of
one layer are joined in ascending order; local ids count through them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import BinaryIO, cast

from kvasir.errors import GGUFError, SliceError
from kvasir.experts import ExpertRange
from kvasir.gguf.encoder import HeaderValue, encode_header
from kvasir.gguf.header import DEFAULT_ALIGNMENT, TensorInfo
from kvasir.gguf.index import GGUFIndex, PartFile
from kvasir.slicing.expert_ranges import check_ranges, merge_ranges
from kvasir.slicing.expert_tensors import find_expert_tensors
from kvasir.slicing.model_card import ModelCard

SLICE_VERSION = 1
READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`n_bytes` bytes at `offset` of a model file, which come to lie at `position` in the slice."""

    position: int
    part: int
    offset: int
    n_bytes: int

    @property
    def stop(self) -> int:
        """First position in the slice after these bytes."""
        return self.position + self.n_bytes


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """A slice as its header and byte ranges of the model's files; between the ranges lies zero padding."""

    header: bytes
    byte_ranges: tuple[ByteRange, ...]  # ascending by position
    n_bytes: int  # size of the whole slice
    parts: tuple[PartFile, ...]  # the model's files that `ByteRange.part` counts
    ranges: tuple[ExpertRange, ...]  # merged

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The slice's bytes from `start` up to `stop`, in pieces of at most READ_BYTES, read from the model's files.

        Raises SliceError for a range outside the slice, GGUFError when a file is gone or has changed.
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
        """Open a model file for reading; raises GGUFError when it is gone or not the one that was planned with."""
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
    """Plan a slice of these experts (given in any order; overlaps count once).

    Raises SliceError when there are none, or for a range that is not in the model.
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
