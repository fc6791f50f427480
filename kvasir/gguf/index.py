"""The index of a GGUF model: metadata and the place of every tensor, over one file or a split set.

The backbone, the slicer and `SliceFile` open models through it. Opening reads headers only (about 0.1 s with a
vocabulary of 250,000). Tensors are views of read-only mappings: they use the page cache, and files may be larger than
memory. It never writes, dequantises or copies a tensor.

If a file changes while it is open: every size is checked when the file is opened and again by `bytes_of`, so a view
always starts inside the file. There is no defence against a file that is truncated or rewritten in place *after* a view
was taken: the operating system ends the process (SIGBUS), or the view shows the new bytes. Therefore files are replaced
by renaming a complete new one over them (as `write_slice` does); the old mapping then stays valid.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from kvasir.errors import GGUFError
from kvasir.experts import FloatRows, WeightMatrix
from kvasir.gguf.header import PartHeader, TensorInfo, read_header
from kvasir.gguf.metadata import Metadata

__all__ = ["GGUFIndex", "PartFile", "TensorInfo"]

_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_NUMPY_FLOATS = {GGMLQuantizationType.F32: "<f4", GGMLQuantizationType.F16: "<f2", GGMLQuantizationType.BF16: "<u2"}


@dataclass(frozen=True, slots=True)
class PartFile:
    """A part's path, size and time at the moment of opening, to detect later changes."""

    path: Path
    n_bytes: int
    mtime_ns: int

    def check_unchanged(self, status: os.stat_result) -> None:
        """Raise GGUFError if `status` (of a newly opened file at this path) differs from the indexed file."""
        if (status.st_size, status.st_mtime_ns) != (self.n_bytes, self.mtime_ns):
            raise GGUFError(
                f"{self.path} has changed since it was indexed: it had {self.n_bytes} bytes, it has {status.st_size}"
            )


@dataclass(slots=True)
class _OpenPart:
    file: PartFile
    mapping: mmap.mmap
    header: PartHeader

    def check_size(self) -> None:
        try:
            n_bytes = self.mapping.size()
        except (OSError, ValueError) as error:
            raise GGUFError(f"{self.file.path}: its size can no longer be read ({error})") from error
        if n_bytes < self.file.n_bytes:
            raise GGUFError(f"{self.file.path} was truncated from {self.file.n_bytes} to {n_bytes} bytes while open")


class GGUFIndex:
    """An open model. Use it as a context manager, or call `close`; views taken from it stay valid after that."""

    def __init__(self, parts: list[_OpenPart]) -> None:
        self._parts = parts
        self._tensors: dict[str, TensorInfo] = {}
        for part in parts:
            for info in part.header.tensors:
                if info.name in self._tensors:
                    raise GGUFError(f"{part.file.path}: the tensor {info.name!r} is in an earlier part too")
                self._tensors[info.name] = info

    @classmethod
    def open(cls, path: Path | str) -> GGUFIndex:
        """Open a GGUF file, or a whole split set by any one of its parts.

        Raises GGUFError for a file that cannot be read or contradicts itself (a missing part is named), and
        UnsupportedModelError for unknown tensor types.
        """
        path = Path(path)
        first = _open_part(path, 0)
        n_parts = first.header.metadata.integer("split.count", 1)
        if n_parts <= 1:
            return cls([first])
        given_number = first.header.metadata.integer("split.no")
        paths = _split_paths(path, given_number, n_parts)
        index = cls([_open_split_part(part_path, number, n_parts) for number, part_path in enumerate(paths)])
        index._check_split_total()
        return index

    @property
    def parts(self) -> tuple[Path, ...]:
        """Return the paths of the files in order; a model that is not split has one."""
        return tuple(part.file.path for part in self._open_parts())

    @property
    def part_files(self) -> tuple[PartFile, ...]:
        """Return the files with their sizes and times at the moment of opening."""
        return tuple(part.file for part in self._open_parts())

    @property
    def metadata(self) -> Metadata:
        """Return the key-value pairs (of the first part of a split model), parsed lazily."""
        return self._open_parts()[0].header.metadata

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Return all tensors by name, in the order of the files."""
        return MappingProxyType(self._tensors)

    @property
    def n_bytes(self) -> int:
        """Return the size of all parts together."""
        return sum(part.file.n_bytes for part in self._open_parts())

    def tensor(self, name: str) -> TensorInfo:
        """Return the place of one tensor. Raises GGUFError that names it if it is missing."""
        info = self._tensors.get(name)
        if info is None:
            raise GGUFError(f"{self._open_parts()[0].file.path}: the tensor {name!r} is missing")
        return info

    def bytes_of(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the stored bytes of a tensor: a read-only view of the mapping, [n_bytes]."""
        info = self.tensor(name)
        part = self._open_parts()[info.part]
        part.check_size()
        return np.frombuffer(part.mapping, dtype=np.uint8, count=info.n_bytes, offset=info.offset)

    def read_at(self, part: int, offset: int, n_bytes: int) -> bytes:
        """Return a copy of `n_bytes` bytes at `offset` of part number `part`. Raises GGUFError outside the file."""
        open_part = self._open_parts()[part]
        if offset < 0 or n_bytes < 0 or offset + n_bytes > open_part.file.n_bytes:
            raise GGUFError(
                f"{open_part.file.path}: bytes {offset} to {offset + n_bytes} are not in its {open_part.file.n_bytes}"
            )
        open_part.check_size()
        return open_part.mapping[offset : offset + n_bytes]

    def matrix(self, name: str) -> WeightMatrix:
        """Return a 2-D tensor as a weight matrix [n_out, n_in]. Raises GGUFError for other dimensions."""
        info = self.tensor(name)
        if len(info.shape) != 2:
            raise GGUFError(f"tensor {name!r} has shape {info.shape}; a matrix has 2 dimensions")
        return WeightMatrix(info.quant_type, info.shape[0], info.shape[1], self.bytes_of(name))

    def values(self, name: str) -> FloatRows:
        """Return an F32, F16 or BF16 tensor as a new f32 array. Raises GGUFError for quantised types."""
        info = self.tensor(name)
        stored_as = _NUMPY_FLOATS.get(info.quant_type)
        if stored_as is None:
            raise GGUFError(f"tensor {name!r} is {info.quant_type.name}; F32, F16 or BF16 is needed here")
        stored = self.bytes_of(name).view(stored_as)
        if info.quant_type is GGMLQuantizationType.BF16:
            return (stored.astype(np.uint32) << 16).view(np.float32).reshape(info.shape)
        return stored.astype(np.float32).reshape(info.shape)

    @contextmanager
    def random_access(self) -> Iterator[None]:
        """Advise the operating system, where possible, not to read ahead: for scattered small reads."""
        if not hasattr(mmap, "MADV_RANDOM"):
            yield
            return
        mappings = [part.mapping for part in self._open_parts()]
        for mapping in mappings:
            mapping.madvise(mmap.MADV_RANDOM)
        try:
            yield
        finally:
            for mapping in mappings:
                mapping.madvise(mmap.MADV_NORMAL)

    def close(self) -> None:
        """Close the files. A mapping is freed with the last view of it."""
        self._parts = []

    def __enter__(self) -> GGUFIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open_parts(self) -> list[_OpenPart]:
        if not self._parts:
            raise GGUFError("the index of this model is closed")
        return self._parts

    def _check_split_total(self) -> None:
        metadata = self.metadata
        if "split.tensors.count" not in metadata:
            return
        claimed = metadata.integer("split.tensors.count")
        if claimed != len(self._tensors):
            raise GGUFError(
                f"{self.parts[0]}: split.tensors.count is {claimed}, but the {len(self._parts)} parts hold "
                f"{len(self._tensors)} tensors"
            )


def _open_part(path: Path, number: int) -> _OpenPart:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block
            raise GGUFError(f"{path}: not a regular file")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size == 0:
                raise GGUFError(f"{path}: the file is empty")
            mapping = mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise GGUFError(f"{path}: cannot be opened: {error.strerror or error}") from error
    except ValueError as error:
        raise GGUFError(f"{path}: cannot be opened: {error}") from error
    header = read_header(mapping, status.st_size, str(path), number)
    return _OpenPart(PartFile(path, status.st_size, status.st_mtime_ns), mapping, header)


def _split_paths(path: Path, given_number: int, n_parts: int) -> list[Path]:
    match = _SPLIT_NAME.fullmatch(path.name)
    wanted = f"-{given_number + 1:05d}-of-{n_parts:05d}.gguf"
    if match is None or not path.name.endswith(wanted):
        raise GGUFError(
            f"{path}: its metadata says part {given_number + 1} of {n_parts}, so its name must end in {wanted}"
        )
    return [path.with_name(f"{match['stem']}-{number + 1:05d}-of-{n_parts:05d}.gguf") for number in range(n_parts)]


def _open_split_part(path: Path, number: int, n_parts: int) -> _OpenPart:
    if not path.exists():
        raise GGUFError(f"{path}: part {number + 1} of {n_parts} of this model is missing")
    part = _open_part(path, number)
    metadata = part.header.metadata
    claimed = (metadata.integer("split.no"), metadata.integer("split.count"))
    if claimed != (number, n_parts):
        raise GGUFError(
            f"{path}: its metadata says split.no {claimed[0]} of {claimed[1]}; its name says {number} of {n_parts}"
        )
    return part
