"""The registry of kernels: by name, or the best one for given experts.

Called by the worker, by the backbone's replica and by benchmarks. A kernel and its module are loaded when the kernel is
first requested.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cache

from kvasir.errors import ConfigError, KernelError
from kvasir.experts import LayerExperts
from kvasir.kernels.api import FLOAT_NAME, KX1_NAME, ExpertKernel
from kvasir.kernels.backend import CPU, Backend, on_backend
from kvasir.kernels.isa import NUMPY, wanted_isa

logger = logging.getLogger(__name__)


def kernel_named(name: str, n_threads: int | None = None, backend: Backend = CPU) -> ExpertKernel:
    """Return the kernel "kx1" or "float", with `n_threads` threads (None: one per usable core; numpy has one).

    Calls with the same arguments return the same kernel while KVASIR_ISA stays the same. Raises ConfigError for an
    unknown name, for a KVASIR_ISA that is unknown or that this CPU cannot run, and for a missing GPU; KernelError if
    KVASIR_ISA requires native code that is not built.
    """
    if name not in _FACTORIES:
        raise ConfigError(f"kernel {name!r} is unknown; it must be one of {', '.join(_FACTORIES)}")
    return _made(name, wanted_isa(), n_threads, backend)


def kernel_for(layers: Iterable[LayerExperts], n_threads: int | None = None, backend: Backend = CPU) -> ExpertKernel:
    """Return the kernel for all these layers: KX1 if it can compute every one of them, else the float kernel.

    Raises KernelError with both reasons if neither can, ConfigError as `kernel_named` does.
    """
    held = list(layers)
    reasons = []
    for name in _FACTORIES:
        kernel = kernel_named(name, n_threads)
        reason = next((refusal for layer in held if (refusal := kernel.refusal(layer)) is not None), None)
        if reason is None:
            return kernel_named(name, n_threads, backend)
        reasons.append(f"{name}: {reason}")
    raise KernelError(f"no kernel can compute these experts ({'; '.join(reasons)})")


def _make_kx1(isa: str | None, n_threads: int | None) -> ExpertKernel:
    from kvasir.kernels import native

    if isa == NUMPY or (isa is None and not native.available()):
        from kvasir.kernels.oracle.kernel import NumpyKX1Kernel

        if isa is None:
            logger.warning(
                "the native KX1 kernel is not built: experts are computed in numpy, with the same bits but 50 to 200 "
                "times slower (about 10 to 50 ms of CPU for a row and expert of 3072 x 1024). "
                "Run `python -m kvasir.kernels.build`; it needs a C compiler, or `pip install ziglang`"
            )
        return NumpyKX1Kernel()
    from kvasir.kernels.kx1 import KX1Kernel

    return KX1Kernel(isa, n_threads)


def _make_float(_isa: str | None, n_threads: int | None) -> ExpertKernel:
    from kvasir.kernels.float_kernel import FloatKernel

    return FloatKernel(n_threads)


_FACTORIES: dict[str, Callable[[str | None, int | None], ExpertKernel]] = {
    KX1_NAME: _make_kx1,
    FLOAT_NAME: _make_float,
}


@cache
def _made(name: str, isa: str | None, n_threads: int | None, backend: Backend) -> ExpertKernel:
    if backend != CPU:
        return on_backend(_made(name, isa, n_threads, CPU), backend)
    return _FACTORIES[name](isa, n_threads)
