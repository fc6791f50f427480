"""The device that computes experts: the CPU, a GPU, or for each call the faster one.

Called by `registry`. The GPU's modules, and wgpu, are imported only if a GPU was requested.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from kvasir.errors import ConfigError, KernelError
from kvasir.kernels.api import KX1_NAME, ExpertKernel

BACKENDS = ("cpu", "gpu", "auto")
SOFTWARE_VARIABLE = "KVASIR_SOFTWARE_GPU"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    """The device that --backend and --gpu-memory request."""

    kind: str = "cpu"  # one of BACKENDS
    gpu_bytes: int | None = None  # GPU memory for experts; None: as much as they need

    def __post_init__(self) -> None:
        if self.kind not in BACKENDS:
            raise ConfigError(f"backend {self.kind!r} is unknown; it must be one of {', '.join(BACKENDS)}")


CPU = Backend()


def on_backend(cpu: ExpertKernel, backend: Backend) -> ExpertKernel:
    """Return a kernel with the bits of `cpu` for a backend.

    If there is no GPU that passes the self-test, "auto" returns `cpu` and "gpu" raises ConfigError. "gpu" also raises
    ConfigError for another kernel than KX1.
    """
    if backend.kind == "cpu":
        return cpu
    if cpu.name != KX1_NAME:
        if backend.kind == "gpu":
            raise ConfigError(f"--backend gpu computes with kernel {KX1_NAME}, not {cpu.name}")
        return cpu
    try:
        return _with_gpu(cpu, backend)
    except KernelError as error:
        if backend.kind == "gpu":
            raise ConfigError(f"--backend gpu: {error}") from error
        logger.info("no GPU is used: %s", error)
        return cpu


def wants_software() -> bool:
    """Return whether KVASIR_SOFTWARE_GPU requests a software GPU, for tests. Raises ConfigError for invalid values."""
    value = os.environ.get(SOFTWARE_VARIABLE, "")
    if value not in {"", "0", "1"}:
        raise ConfigError(f"{SOFTWARE_VARIABLE} is {value!r}; it must be 1, 0 or unset")
    return value == "1"


def _with_gpu(cpu: ExpertKernel, backend: Backend) -> ExpertKernel:
    from kvasir.kernels.gpu.device import open_device
    from kvasir.kernels.gpu.kernel import GpuKX1Kernel
    from kvasir.kernels.gpu.or_cpu import GpuOrCpuKernel
    from kvasir.kernels.gpu.tunables import tune

    gpu = GpuKX1Kernel(open_device(wants_software()), cpu, backend.gpu_bytes)
    if not gpu.device.is_software:
        tune(gpu)
    if gpu.fingerprint != cpu.fingerprint:  # the self-test ran with the tuned settings
        raise KernelError(f"the GPU has fingerprint {gpu.fingerprint}, the CPU {cpu.fingerprint}")
    return GpuOrCpuKernel(gpu, cpu, is_measured=backend.kind == "auto")
