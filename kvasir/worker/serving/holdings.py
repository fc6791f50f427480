"""What a worker holds: the experts of one slice or of several, loaded into one kernel.

Made at the start, and by an agent whenever it holds other ranges; connections check requests against it and the compute
queue computes with it. The weights stay in the mapped files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from kvasir.errors import ConfigError
from kvasir.experts import ExpertRange
from kvasir.kernels.api import ExpertKernel, LoadedExperts
from kvasir.kernels.backend import CPU, Backend
from kvasir.slicing.expert_ranges import merge_ranges
from kvasir.slicing.slice_file import SliceFile
from kvasir.worker.serving.joined_experts import JoinedExperts
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
        """Experts over all layers."""
        return sum(item.n_experts for item in self.ranges)


def open_holdings(path: Path, kernel: str, n_threads: int | None, backend: Backend = CPU) -> Holdings:
    """Open a slice and load it into the kernel of this name ("auto": the best that can).

    Raises ConfigError when the kernel cannot compute this slice, SliceError or GGUFError for an unsound file,
    KernelError when the kernel does not pass its self-test.
    """
    return join_holdings([path], kernel, n_threads, backend)


def join_holdings(paths: Sequence[Path], kernel: str, n_threads: int | None, backend: Backend = CPU) -> Holdings:
    """Open slices of one model that share no expert, as one. Raises as `open_holdings` does."""
    files = [SliceFile.open(path) for path in paths]
    chosen = choose_kernel(kernel, [experts for file in files for experts in file.layers.values()], n_threads, backend)
    for file in files:
        _check(file, files[0], chosen, kernel)
    ranges = merge_ranges(item for file in files for item in file.ranges)
    if sum(item.n_experts for item in ranges) != sum(file.n_experts for file in files):
        raise ConfigError(f"slices hold the same experts twice: {', '.join(str(path) for path in paths)}")
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
            f"{file.path} is of model {file.model_fingerprint}, {first.path} of {first.model_fingerprint}"
        )
    for experts in file.layers.values():
        reason = chosen.refusal(experts)
        if reason is not None:
            raise ConfigError(f"--kernel {name} cannot compute {file.path}: {reason}")


def _load(chosen: ExpertKernel, files: Sequence[SliceFile], layer: int) -> LoadedExperts:
    """One layer from all files that have experts of it, in the order of their ids."""
    having = [file for file in files if layer in file.layers]
    if len(having) == 1:
        return chosen.load(having[0].layers[layer])
    having.sort(key=lambda file: file.expert_ids(layer)[0])
    for before, after in pairwise(having):
        if before.expert_ids(layer)[-1] > after.expert_ids(layer)[0]:
            raise ConfigError(f"the experts of layer {layer} in {before.path} and {after.path} alternate")
    return JoinedExperts([chosen.load(file.layers[layer]) for file in having])
