"""KX1 on a GPU and the CPU: each call goes to the device that is faster for its size.

Called by `backend`. After a failure of the GPU the CPU computes everything. Both give the same bits, so the result does
not depend on the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kvasir.errors import KernelError
from kvasir.experts import FloatRows, LayerExperts
from kvasir.kernels.api import KX1_NAME, EncodedRows, ExpertKernel, LoadedExperts, Pairs, RowFormat
from kvasir.kernels.gpu.device import GpuError
from kvasir.kernels.gpu.kernel import GpuKX1Kernel
from kvasir.kernels.gpu.tunables import seconds_of_call

SIZES_TRIED = (1, 4, 16, 64)  # pairs
NEVER = 1 << 62

logger = logging.getLogger(__name__)
TimeCall = Callable[[LoadedExperts, int], float]


def crossover(sizes: Sequence[int], gpu_s: Sequence[float], cpu_s: Sequence[float]) -> int:
    """Return the number of pairs from which the GPU was always faster; NEVER if it was slower for the largest size."""
    first = NEVER
    for size, on_gpu, on_cpu in reversed(list(zip(sizes, gpu_s, cpu_s, strict=True))):
        if on_gpu >= on_cpu:
            break
        first = size
    return first


class GpuOrCpuKernel:
    """Implements ExpertKernel. With `is_measured` calls are distributed by size, else all go to the GPU."""

    name = KX1_NAME
    row_format = RowFormat.KX1

    def __init__(
        self, gpu: GpuKX1Kernel, cpu: ExpertKernel, *, is_measured: bool, time_call: TimeCall = seconds_of_call
    ) -> None:
        self.gpu, self.cpu = gpu, cpu
        self.gpu_from: int | None = None if is_measured else 1  # pairs of a call; None: not measured yet
        self._time_call = time_call
        self.n_gpu_calls = self.n_cpu_calls = 0

    @property
    def isa_name(self) -> str:
        """Return both devices, for reports."""
        return f"{self.gpu.isa_name}, {getattr(self.cpu, 'isa_name', 'numpy')}"

    @property
    def fingerprint(self) -> str:
        """64 hex digits; both devices passed the self-test."""
        return self.cpu.fingerprint

    def refusal(self, experts: LayerExperts) -> str | None:
        """Return why KX1 cannot compute these experts, or None. The CPU computes those that only the GPU refuses."""
        return self.cpu.refusal(experts)

    def load(self, experts: LayerExperts) -> LoadedExperts:
        """Load on both devices, and measure them with the first layer that both can compute."""
        on_cpu = self.cpu.load(experts)
        reason = self.gpu.refusal(experts)
        if reason is not None or self.gpu_from == NEVER:
            logger.info("layer %d stays on the CPU: %s", experts.layer, reason or "the GPU is not used")
            return on_cpu
        try:
            on_gpu = self.gpu.load(experts)
            if self.gpu_from is None:
                self._measure(on_gpu, on_cpu)
        except GpuError as error:
            self.give_up(error)
            return on_cpu
        return LoadedOnBoth(self, on_gpu, on_cpu)

    def encode_rows(self, rows: FloatRows) -> EncodedRows:
        """Encode rows f32 [n, d_model] in KX1's packed form."""
        return self.cpu.encode_rows(rows)

    def row_bytes(self, d_model: int) -> int:
        """Return the bytes of one packed row."""
        return self.cpu.row_bytes(d_model)

    def give_up(self, error: GpuError) -> None:
        """Use only the CPU from now on."""
        if self.gpu_from != NEVER:
            logger.warning(
                "the GPU failed and is not used until the next start; the CPU computes the same bits: %s", error
            )
        self.gpu_from = NEVER

    def _measure(self, on_gpu: LoadedExperts, on_cpu: LoadedExperts) -> None:
        try:
            cpu_s = [self._time_call(on_cpu, n) for n in SIZES_TRIED]
            gpu_s = [self._time_call(on_gpu, n) for n in SIZES_TRIED]
        except GpuError:
            raise
        except KernelError as error:  # a damaged expert: its callers get this error, and another layer is measured
            logger.info("GPU and CPU are not compared on layer %d: %s", on_cpu.layer, error)
            return
        self.gpu_from = crossover(SIZES_TRIED, gpu_s, cpu_s)
        said = "no calls" if self.gpu_from == NEVER else f"calls of {self.gpu_from} pairs or more"
        logger.info("the GPU %s computes %s", self.gpu.device.name, said)


class LoadedOnBoth:
    """The experts of one layer on both devices; implements LoadedExperts."""

    def __init__(self, kernel: GpuOrCpuKernel, on_gpu: LoadedExperts, on_cpu: LoadedExperts) -> None:
        self._kernel, self._on_gpu, self._on_cpu = kernel, on_gpu, on_cpu

    @property
    def layer(self) -> int:
        return self._on_cpu.layer

    @property
    def n_expert(self) -> int:
        return self._on_cpu.n_expert

    @property
    def d_model(self) -> int:
        return self._on_cpu.d_model

    def compute(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> FloatRows:
        """Compute f32 [n_pairs, d_model]; see LoadedExperts."""
        kernel = self._kernel
        if len(pair_ids) >= (kernel.gpu_from or 1):
            try:
                outputs = self._on_gpu.compute(rows, pair_rows, pair_ids)
            except GpuError as error:
                kernel.give_up(error)
            else:
                kernel.n_gpu_calls += 1
                return outputs
        kernel.n_cpu_calls += 1
        return self._on_cpu.compute(rows, pair_rows, pair_ids)
