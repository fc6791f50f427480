"""A worker's holdings: the experts of one slice or of several, loaded into one kernel.

They are opened at the start, and by an agent each time its ranges change. Connections check requests against them and
the compute queue computes with them. The weights stay in the mapped files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from kvasir.errors import ConfigError, KernelError
from kvasir.experts import ExpertRange, FloatRows
from kvasir.kernels.api import EncodedRows, ExpertKernel, LoadedExperts, Pairs
from kvasir.kernels.backend import CPU, Backend
from kvasir.slicing.expert_ranges import merge_ranges
from kvasir.slicing.slice_file import SliceFile
from kvasir.worker.serving.kernel_choice import choose_kernel


@dataclass(frozen=True, slots=True, eq=False)
class Holdings:
    """The experts that this worker can compute, by layer and local id."""

    model_fingerprint: str
    model_name: str
    d_model: int
    ranges: tuple[ExpertRange, ...]
    kernel: ExpertKernel
    layers: Mapping[int, LoadedExperts]
    slice_bytes: int

    @property
    def n_experts(self) -> int:
        """Return the number of experts over all layers."""
        return sum(item.n_experts for item in self.ranges)


def open_holdings(path: Path, kernel: str, n_threads: int | None, backend: Backend = CPU) -> Holdings:
    """Open a slice and load it into the kernel of this name ("auto": the best one that can compute it).

    Raises ConfigError if the kernel cannot compute this slice, SliceError or GGUFError for a damaged file, and
    KernelError if the kernel fails its self-test.
    """
    return join_holdings([path], kernel, n_threads, backend)


def join_holdings(paths: Sequence[Path], kernel: str, n_threads: int | None, backend: Backend = CPU) -> Holdings:
    """Open several slices of one model that share no expert. Raises the same errors as `open_holdings`."""
    files = [SliceFile.open(path) for path in paths]
    chosen = choose_kernel(kernel, [experts for file in files for experts in file.layers.values()], n_threads, backend)
    for file in files:
        _check(file, files[0], chosen, kernel)
    ranges = merge_ranges(item for file in files for item in file.ranges)
    if sum(item.n_experts for item in ranges) != sum(file.n_experts for file in files):
        raise ConfigError(f"these slices share experts: {', '.join(str(path) for path in paths)}")
    layers = {item.layer for item in ranges}
    return Holdings(
        model_fingerprint=files[0].model_fingerprint,
        model_name=files[0].model_name,
        d_model=files[0].facts.d_model,
        ranges=ranges,
        kernel=chosen,
        layers={layer: _load(chosen, files, layer) for layer in sorted(layers)},
        slice_bytes=sum(file.n_bytes for file in files),
    )


def _check(file: SliceFile, first: SliceFile, chosen: ExpertKernel, name: str) -> None:
    if (file.model_fingerprint, file.facts.d_model) != (first.model_fingerprint, first.facts.d_model):
        raise ConfigError(
            f"{file.path} was cut from model {file.model_fingerprint}, {first.path} from {first.model_fingerprint}"
        )
    for experts in file.layers.values():
        reason = chosen.refusal(experts)
        if reason is not None:
            raise ConfigError(f"--kernel {name} cannot compute {file.path}: {reason}")


def _load(chosen: ExpertKernel, files: Sequence[SliceFile], layer: int) -> LoadedExperts:
    """Load one layer from all files that hold experts of it, in the order of their ids."""
    having = [file for file in files if layer in file.layers]
    if len(having) == 1:
        return chosen.load(having[0].layers[layer])
    having.sort(key=lambda file: file.expert_ids(layer)[0])
    for before, after in pairwise(having):
        if before.expert_ids(layer)[-1] > after.expert_ids(layer)[0]:
            raise ConfigError(f"the experts of layer {layer} in {before.path} and {after.path} overlap in their order")
    return JoinedExperts([chosen.load(file.layers[layer]) for file in having])


class JoinedExperts:
    """The experts of one layer from several slices; implements `LoadedExperts`.

    Local ids count through the parts in their order. Each slice stays mapped as it is, and a pair goes to the slice
    with its expert. A kernel's result for a pair does not depend on the other pairs of a call, so no bit changes.
    """

    def __init__(self, parts: Sequence[LoadedExperts]) -> None:
        self._parts = tuple(parts)
        self._first_ids = np.cumsum([0, *(part.n_expert for part in self._parts)], dtype=np.int32)

    @property
    def layer(self) -> int:
        return self._parts[0].layer

    @property
    def n_expert(self) -> int:
        return int(self._first_ids[-1])

    @property
    def d_model(self) -> int:
        return self._parts[0].d_model

    def compute(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> FloatRows:
        """Compute as `LoadedExperts.compute` does: f32 [n_pairs, d_model]."""
        if len(pair_ids) and not 0 <= int(pair_ids.min()) <= int(pair_ids.max()) < self.n_expert:
            raise KernelError(f"a local id is outside 0 to {self.n_expert - 1} of layer {self.layer}")
        outputs = np.empty((len(pair_ids), self.d_model), np.float32)
        part_of = np.searchsorted(self._first_ids, pair_ids, side="right") - 1
        for number, part in enumerate(self._parts):
            places = np.flatnonzero(part_of == number)
            if len(places):
                local_ids = pair_ids[places] - self._first_ids[number]
                outputs[places] = part.compute(rows, pair_rows[places], local_ids)
        return outputs
