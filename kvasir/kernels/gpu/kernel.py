"""KX1 on a GPU through wgpu: the same name, fingerprint and bits as every other build. Implements ExpertKernel.

Called by `backend` for workers that request it. Rows and ids are checked here; experts are uploaded when they are first
computed. The CPU kernel encodes rows and refuses experts.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from kvasir.errors import KernelError
from kvasir.experts import FloatRows, LayerExperts
from kvasir.kernels.api import KX1_NAME, KX1_VERSION, EncodedRows, ExpertKernel, Pairs, RowFormat, kernel_fingerprint
from kvasir.kernels.checks import check_encoded_rows, check_packed_rows, check_pairs, check_range
from kvasir.kernels.gpu.call import SlotSet
from kvasir.kernels.gpu.device import GpuDevice, GpuError
from kvasir.kernels.gpu.shaders import ROW_PROGRAMS, Program, matrix_programs
from kvasir.kernels.gpu.tables import PlacedExpert, Tunables, call_tables
from kvasir.kernels.gpu.weights import GpuWeights, expert_bytes
from kvasir.kernels.selftest import self_test

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SLOT_SETS = 2
MOST_PAIRS = 1024  # of one slot set; a longer call becomes several, two of them under way
SELF_TEST_TILED_FROM = 16  # the self-test's calls have 20 pairs of an expert, or up to 3
MOST_OUTPUT_BYTES = 32 * 1024 * 1024


class GpuKX1Kernel:
    """KX1 in WGSL. `cpu` encodes rows; `max_bytes` bounds the GPU memory for experts (None: all of it)."""

    name = KX1_NAME
    row_format = RowFormat.KX1

    def __init__(
        self, device: GpuDevice, cpu: ExpertKernel, max_bytes: int | None = None, tunables: Tunables | None = None
    ) -> None:
        self.device = device
        self.tunables = tunables or Tunables()
        self.weights = GpuWeights(device, max_bytes)
        self._cpu = cpu
        self._sets = deque(SlotSet(device) for _ in range(SLOT_SETS))
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._forgotten: deque[int] = deque()
        device.use(self.tunables.lanes, device.has_packed_dot)
        self._compile(ROW_PROGRAMS)

    @property
    def isa_name(self) -> str:
        """Return the GPU's name, for reports."""
        return f"gpu {self.device.name}"

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits. Raises KernelError if this device fails the self-test.

        The self-test runs with the current tunables, but always includes the tiled program.
        """
        chosen = self.tunables
        self.set_tunables(replace(chosen, tiled_from=min(chosen.tiled_from, SELF_TEST_TILED_FROM)))
        try:
            digest = self._self_test_digest()
        finally:
            self.set_tunables(chosen)
        return kernel_fingerprint(KX1_NAME, KX1_VERSION, digest)

    def _self_test_digest(self) -> str:
        kernel: ExpertKernel = self
        try:
            return self_test(kernel)
        except GpuError:
            raise
        except KernelError:
            if not self.device.has_packed_dot:
                raise
        self.device.use(self.tunables.lanes, has_packed_dot=False)  # some drivers compute it incorrectly
        return self_test(kernel)

    def refusal(self, experts: LayerExperts) -> str | None:
        """Return why KX1 cannot compute these experts on this device, or None."""
        reason = self._cpu.refusal(experts)
        n_bytes = expert_bytes(experts)
        if reason is None and n_bytes > self.device.arena_bytes:
            most = self.device.arena_bytes
            reason = f"layer {experts.layer}: an expert has {n_bytes} bytes; this GPU can bind {most}"
        return reason

    def load(self, experts: LayerExperts) -> LoadedGpuExperts:
        """Compile the programs for these experts; weights are uploaded when they are first computed."""
        reason = self.refusal(experts)
        if reason is not None:
            raise KernelError(reason)
        with self._lock:
            for stack in (experts.gate, experts.up, experts.down):
                self._compile(matrix_programs(stack.quant_type))
        return LoadedGpuExperts(self, experts, next(self._numbers))

    def _compile(self, programs: Iterable[Program]) -> None:
        for program in programs:
            self.device.pipeline(program)

    def encode_rows(self, rows: FloatRows) -> EncodedRows:
        """Encode rows f32 [n, d_model] in KX1's packed form, on the CPU."""
        return self._cpu.encode_rows(rows)

    def row_bytes(self, d_model: int) -> int:
        """Return the bytes of one packed row."""
        return self._cpu.row_bytes(d_model)

    def set_tunables(self, tunables: Tunables) -> None:
        """Use these tunables from the next call on."""
        with self._lock:
            self.tunables = tunables
            self.device.use(tunables.lanes, self.device.has_packed_dot)

    def forget(self, number: int) -> None:
        """Free the memory of a loaded layer that is no longer used, before the next call.

        It takes no lock, because the garbage collector may call it at any moment.
        """
        self._forgotten.append(number)

    def run(
        self, experts: LayerExperts, number: int, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs
    ) -> FloatRows:
        """Compute checked pairs: f32 [n_pairs, d_model]. Raises GpuError if the device fails."""
        outputs = np.empty((len(pair_ids), experts.d_model), np.float32)
        under_way: deque[tuple[SlotSet, npt.NDArray[np.intp]]] = deque()
        with self._lock:
            while self._forgotten:
                self.weights.forget(self._forgotten.popleft())
            try:
                for part in self._parts(experts, number, pair_ids):
                    if len(under_way) == SLOT_SETS:
                        _collect(under_way, outputs)
                    self._begin(experts, part, rows, pair_rows, under_way)
            finally:
                while under_way:
                    _collect(under_way, outputs)
        return outputs

    def _begin(
        self,
        experts: LayerExperts,
        part: _Part,
        rows: EncodedRows,
        pair_rows: Pairs,
        under_way: deque[tuple[SlotSet, npt.NDArray[np.intp]]],
    ) -> None:
        used, slot_rows = np.unique(pair_rows[part.pairs], return_inverse=True)
        slots = np.arange(len(part.pairs))
        tables = call_tables(experts.d_model, experts.d_ff, part.experts, part.counts, slot_rows, slots, self.tunables)
        slot_set = self._sets[0]
        self._sets.rotate(-1)
        slot_set.begin(rows[used], experts.d_model, experts.d_ff, tables, self.weights.arenas)
        under_way.append((slot_set, part.pairs))

    def _parts(self, experts: LayerExperts, number: int, pair_ids: Pairs) -> Iterator[_Part]:
        """Yield the pairs sorted by expert, in parts that fit into slot sets and arenas."""
        most = max(1, min(MOST_PAIRS, MOST_OUTPUT_BYTES // (4 * experts.d_model)))
        order = np.argsort(pair_ids, kind="stable")
        start = 0
        while start < len(order):
            part = self._part(experts, number, pair_ids, order[start : start + most])
            yield part
            start += len(part.pairs)

    def _part(self, experts: LayerExperts, number: int, pair_ids: Pairs, pairs: npt.NDArray[np.intp]) -> _Part:
        """Return as many of these sorted pairs as the arenas hold experts for, at least those of one expert."""
        ids, counts = np.unique(pair_ids[pairs], return_counts=True)
        keys = [(number, int(local_id)) for local_id in ids]
        placed: list[PlacedExpert] = []
        for key in keys:
            found = self.weights.place(key, experts, frozenset(keys[: len(placed)]))
            if found is None:
                break
            placed.append(found)
        if not placed:
            raise GpuError("the GPU memory for experts is too small for one of them; allow more")
        n_pairs = int(counts[: len(placed)].sum())
        return _Part(pairs[:n_pairs], placed, [int(count) for count in counts[: len(placed)]])


class _Part(NamedTuple):
    """Pairs of one slot set: their places in the call, sorted by expert, and the experts with their counts."""

    pairs: npt.NDArray[np.intp]
    experts: list[PlacedExpert]
    counts: list[int]


def _collect(under_way: deque[tuple[SlotSet, npt.NDArray[np.intp]]], outputs: FloatRows) -> None:
    """Wait for the part that started first."""
    slot_set, places = under_way.popleft()
    outputs[places] = slot_set.finish()


class LoadedGpuExperts:
    """The experts of one layer; implements LoadedExperts. Safe to call from several threads, which take turns."""

    def __init__(self, kernel: GpuKX1Kernel, experts: LayerExperts, number: int) -> None:
        self._kernel, self._experts, self._number = kernel, experts, number
        self._row_bytes = kernel.row_bytes(experts.d_model)
        weakref.finalize(self, kernel.forget, number).atexit = False

    @property
    def layer(self) -> int:
        return self._experts.layer

    @property
    def n_expert(self) -> int:
        return self._experts.n_expert

    @property
    def d_model(self) -> int:
        return self._experts.d_model

    def compute(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> FloatRows:
        """Compute f32 [n_pairs, d_model]; see LoadedExperts. Raises GpuError if the device fails."""
        check_encoded_rows(rows, self._row_bytes)
        check_pairs(pair_rows, pair_ids)
        check_range("row number", pair_rows, len(rows))
        check_range("local expert id", pair_ids, self.n_expert)
        check_packed_rows(rows)
        return self._kernel.run(self._experts, self._number, rows, pair_rows, pair_ids)
