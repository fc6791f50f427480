"""The choice of a worker's kernel, and the facts that it reports about it.

`holdings` chooses, `report` reports. The registry decides which kernel can compute a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.experts import LayerExperts
from kvasir.kernels import native
from kvasir.kernels.api import ExpertKernel
from kvasir.kernels.backend import CPU, Backend
from kvasir.kernels.fingerprint import FLOAT_NAME
from kvasir.kernels.isa import NUMPY, wanted_isa
from kvasir.kernels.registry import kernel_for, kernel_named

KX1_KEPT_BYTES = 72 * 1024 * 1024  # working memory that the C library keeps: SCRATCH_KEPT_BYTES of its scratch.h


def choose_kernel(
    name: str, experts: Sequence[LayerExperts], n_threads: int | None, backend: Backend = CPU
) -> ExpertKernel:
    """Return the kernel of this name, or with "auto" the best one for these experts, on a backend.

    Raises ConfigError for an unknown name, an invalid KVASIR_ISA or a missing GPU, KernelError if no kernel can compute
    the experts.
    """
    return kernel_for(experts, n_threads, backend) if name == "auto" else kernel_named(name, n_threads, backend)


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """How a kernel runs on this machine."""

    build: str  # the instruction set or the GPU, "native" for the float kernel in C, or "numpy"
    n_threads: int
    kept_bytes: int  # memory that it may keep between calls, in addition to the mapped slice


def kernel_facts(kernel: ExpertKernel, n_threads: int | None) -> KernelFacts:
    """Return the facts of a kernel that was chosen with this thread count."""
    threads = 1 if _is_numpy(kernel) else n_threads or native.usable_cores()
    if kernel.name != FLOAT_NAME:
        return KernelFacts(str(getattr(kernel, "isa_name", NUMPY)), threads, KX1_KEPT_BYTES)
    from kvasir.kernels.float_kernel import DEFAULT_CACHE_BYTES

    kept = DEFAULT_CACHE_BYTES + KX1_KEPT_BYTES
    return KernelFacts(NUMPY if _is_numpy(kernel) else "native", threads, kept)


def _is_numpy(kernel: ExpertKernel) -> bool:
    """Return whether this kernel runs in numpy, which has one build and one thread."""
    if kernel.name == FLOAT_NAME:
        return wanted_isa() == NUMPY or not native.available()
    return not hasattr(kernel, "isa_name")
