"""Which kernel a worker computes with, and with how many threads.

`holdings` calls it once at the start. The registry decides what can compute a slice; this adds the thread count.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.experts import LayerExperts
from kvasir.kernels.api import ExpertKernel
from kvasir.kernels.fingerprint import KX1_NAME
from kvasir.kernels.registry import kernel_for, kernel_named


def choose_kernel(name: str, experts: Sequence[LayerExperts], n_threads: int | None) -> ExpertKernel:
    """The kernel of this name, or with "auto" the best one for these experts.

    Raises ConfigError for an unknown name or a bad KVASIR_ISA, KernelError when no kernel can compute the experts.
    """
    chosen = kernel_for(experts) if name == "auto" else kernel_named(name)
    return chosen if n_threads is None else _with_threads(chosen, n_threads)


def _with_threads(kernel: ExpertKernel, n_threads: int) -> ExpertKernel:
    """The same kernel with a thread count of its own; numpy's has none and stays as it is."""
    if not hasattr(kernel, "n_threads"):
        return kernel
    if kernel.name == KX1_NAME:
        from kvasir.kernels.kx1 import KX1Kernel

        return KX1Kernel(n_threads=n_threads)
    from kvasir.kernels.float_kernel import FloatKernel

    return FloatKernel(n_threads=n_threads)


def kernel_build(kernel: ExpertKernel) -> str:
    """The build of the kernel that runs: the instruction set, or "numpy"."""
    return str(getattr(kernel, "isa_name", "numpy"))
