"""What a worker holds: the experts of one slice, loaded into one kernel.

Made once at the start; connections check requests against it and the compute queue computes with it. The weights
stay in the mapped file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvasir.errors import ConfigError
from kvasir.experts import ExpertRange
from kvasir.kernels.api import ExpertKernel, LoadedExperts
from kvasir.slice_file import SliceFile
from kvasir.worker.kernel_choice import choose_kernel


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


def open_holdings(path: Path, kernel: str, n_threads: int | None) -> Holdings:
    """Open a slice and load it into the kernel of this name ("auto": the best that can).

    Raises ConfigError when the kernel cannot compute this slice, SliceError or GGUFError for an unsound file,
    KernelError when the kernel does not pass its self-test.
    """
    slice_file = SliceFile.open(path)
    experts = list(slice_file.layers.values())
    chosen = choose_kernel(kernel, experts, n_threads)
    for layer in experts:
        reason = chosen.refusal(layer)
        if reason is not None:
            raise ConfigError(f"--kernel {kernel} cannot compute {path}: {reason}")
    return Holdings(
        model_fingerprint=slice_file.model_fingerprint,
        model_name=slice_file.model_name,
        d_model=slice_file.facts.d_model,
        ranges=slice_file.ranges,
        kernel=chosen,
        layers={layer.layer: chosen.load(layer) for layer in experts},
        slice_bytes=slice_file.n_bytes,
    )
