"""An open and checked slice file: the experts that a worker serves, mapped in place.

The native worker and the manifest read slices through it. All metadata is compared with the tensors before they are
used. Weights are pages of the mapped file, never copies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import MappingProxyType, TracebackType

from kvasir.errors import SliceError
from kvasir.experts import ExpertRange, LayerExperts
from kvasir.gguf.index import GGUFIndex
from kvasir.gguf.metadata import Metadata
from kvasir.slicing.expert_ranges import merge_ranges
from kvasir.slicing.expert_tensors import ExpertTensors, find_expert_tensors, layer_experts
from kvasir.slicing.model_card import LAYERS_MAX
from kvasir.slicing.slices import SLICE_VERSION

RANGES_MAX = 1 << 16

_FINGERPRINT = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """The facts in a slice's metadata: its model and the experts that it holds."""

    architecture: str
    model_name: str
    model_fingerprint: str
    n_layer: int
    n_expert: int  # experts of a layer of the model, not of the slice
    d_model: int
    d_ff: int
    ranges: tuple[ExpertRange, ...]


class SliceFile:
    """An open slice. Use it as a context manager, or call `close`; weights taken from it stay valid after that."""

    def __init__(self, index: GGUFIndex, path: Path, facts: SliceFacts, tensors: Mapping[int, ExpertTensors]) -> None:
        self._index = index
        self.path = path
        self.facts = facts
        self.n_bytes = index.n_bytes
        self.layers: Mapping[int, LayerExperts] = MappingProxyType(
            {layer: layer_experts(index, layer_tensors) for layer, layer_tensors in tensors.items()}
        )

    @classmethod
    def open(cls, path: Path | str) -> SliceFile:
        """Open and check a slice.

        Raises SliceError if it is not a slice or contradicts its metadata, GGUFError or UnsupportedModelError if the
        file itself is damaged.
        """
        path = Path(path)
        index = GGUFIndex.open(path)
        if not is_slice(index):
            raise SliceError(f"{path} is not a slice: it has no kvasir.slice.version; cut one with `kvasir slice`")
        facts = _read_facts(index.metadata, path)
        tensors = find_expert_tensors(index, facts.n_layer)
        _check_tensors(index, tensors, facts, path)
        return cls(index, path, facts, tensors)

    @property
    def architecture(self) -> str:
        return self.facts.architecture

    @property
    def model_name(self) -> str:
        return self.facts.model_name

    @property
    def model_fingerprint(self) -> str:
        """Return the fingerprint of the model that the slice was cut from, 64 hex digits."""
        return self.facts.model_fingerprint

    @property
    def ranges(self) -> tuple[ExpertRange, ...]:
        """Return the experts held, sorted; ranges of one layer neither overlap nor touch."""
        return self.facts.ranges

    @property
    def n_experts(self) -> int:
        """Return the number of experts over all layers."""
        return sum(item.n_experts for item in self.ranges)

    def local_id(self, layer: int, expert_id: int) -> int:
        """Return the index of an expert among those held of its layer. Raises SliceError if it is not held."""
        first_local = 0
        for item in self.ranges:
            if item.layer != layer:
                continue
            if item.start <= expert_id < item.stop:
                return first_local + expert_id - item.start
            first_local += item.n_experts
        raise SliceError(f"{self.path} does not hold expert {expert_id} of layer {layer}")

    def expert_ids(self, layer: int) -> tuple[int, ...]:
        """Return the expert ids held of a layer, by local id."""
        return tuple(
            expert_id for item in self.ranges if item.layer == layer for expert_id in range(item.start, item.stop)
        )

    def close(self) -> None:
        """Close the file; its mapping is freed with the last view of it."""
        self.layers = MappingProxyType({})
        self._index.close()

    def __enter__(self) -> SliceFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def is_slice(index: GGUFIndex) -> bool:
    """Return whether a GGUF file's metadata marks it as a slice."""
    return "kvasir.slice.version" in index.metadata


def _read_facts(metadata: Metadata, path: Path) -> SliceFacts:
    version = metadata.integer("kvasir.slice.version")
    if version != SLICE_VERSION:
        raise SliceError(f"{path}: slice version {version} is unknown; version {SLICE_VERSION} is needed")
    fingerprint = metadata.text("kvasir.slice.fingerprint")
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise SliceError(f"{path}: kvasir.slice.fingerprint is {fingerprint[:80]!r}, not 64 hex digits")
    n_layer = metadata.integer("kvasir.slice.n_layer")
    if not 1 <= n_layer <= LAYERS_MAX:
        raise SliceError(f"{path}: kvasir.slice.n_layer is {n_layer}; it must be from 1 to {LAYERS_MAX}")
    n_expert = metadata.integer("kvasir.slice.n_expert")
    return SliceFacts(
        architecture=metadata.text("general.architecture"),
        model_name=metadata.text("kvasir.slice.model"),
        model_fingerprint=fingerprint,
        n_layer=n_layer,
        n_expert=n_expert,
        d_model=metadata.integer("kvasir.slice.d_model"),
        d_ff=metadata.integer("kvasir.slice.d_ff"),
        ranges=_read_ranges(metadata, path, n_layer, n_expert),
    )


def _read_ranges(metadata: Metadata, path: Path, n_layer: int, n_expert: int) -> tuple[ExpertRange, ...]:
    if "kvasir.slice.layers" in metadata and metadata.n_items("kvasir.slice.layers") > RANGES_MAX:
        raise SliceError(f"{path}: a slice has at most {RANGES_MAX} ranges")
    columns = [metadata.integers(f"kvasir.slice.{key}") for key in ("layers", "starts", "stops")]
    if len({len(column) for column in columns}) != 1 or not columns[0]:
        lengths = ", ".join(str(len(column)) for column in columns)
        raise SliceError(
            f"{path}: kvasir.slice.layers, starts and stops have {lengths} items; they must have the same number"
        )
    ranges = tuple(ExpertRange(*column) for column in zip(*columns, strict=True))
    if merge_ranges(ranges) != ranges:
        raise SliceError(f"{path}: the slice's ranges are not sorted, or they overlap or touch within a layer")
    for item in ranges:
        if item.layer >= n_layer or item.stop > n_expert:
            raise SliceError(
                f"{path}: range {item.layer}:{item.start}-{item.stop} is not in a model of {n_layer} layers "
                f"of {n_expert} experts"
            )
    return ranges


def _check_tensors(index: GGUFIndex, tensors: Mapping[int, ExpertTensors], facts: SliceFacts, path: Path) -> None:
    wanted = dict(_local_counts(facts.ranges))
    if sorted(wanted) != sorted(tensors):
        raise SliceError(f"{path}: metadata names layers {sorted(wanted)}, the tensors are of {sorted(tensors)}")
    for layer, found in tensors.items():
        claimed = (wanted[layer], facts.d_model, facts.d_ff)
        if (found.n_expert, found.d_model, found.d_ff) != claimed:
            raise SliceError(
                f"{path}: layer {layer} should have {claimed[0]} experts of {claimed[1]} x {claimed[2]}, "
                f"its tensors have {found.n_expert} of {found.d_model} x {found.d_ff}"
            )
    known = {info.name for found in tensors.values() for info in found.all_tensors}
    surplus = sorted(set(index.tensors) - known)
    if surplus:
        raise SliceError(f"{path}: the tensor {surplus[0]!r} does not belong in a slice")


def _local_counts(ranges: tuple[ExpertRange, ...]) -> Iterator[tuple[int, int]]:
    for layer, group in groupby(ranges, key=lambda item: item.layer):
        yield layer, sum(item.n_experts for item in group)
