"""The floating-point expert on a GPU that KX1's WGSL is measured against: the same bytes, tables and dispatches.

Called by `gpu_speed`. Its outputs differ from device to device in their last bits, which is why nothing serves with it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Quant

from kvasir.experts import FloatRows, LayerExperts
from kvasir.kernels.gpu.device import Bindings, GpuDevice, Step
from kvasir.kernels.gpu.shaders import Kind, Program
from kvasir.kernels.gpu.tables import (
    CallTables,
    Dispatch,
    PlacedExpert,
    PlacedMatrix,
    Tunables,
    call_tables,
    submissions,
)

FOLDER = Path(__file__).parent / "wgsl"
TYPE_FILES = {Quant.Q4_K: "float_q4_k", Quant.Q6_K: "float_q6_k"}
BODIES = {Kind.MATVEC_1: "float_matvec_1", Kind.MATVEC_4: "float_matvec_4", Kind.TILED: "float_tiled"}


@cache
def _file(name: str) -> str:
    return (FOLDER / f"{name}.wgsl").read_text(encoding="utf-8")


class FloatGpuExpert:
    """One expert, uploaded once. `compute` takes f32 rows and gives f32 outputs."""

    def __init__(self, device: GpuDevice, experts: LayerExperts, tunables: Tunables) -> None:
        self._device, self._tunables = device, tunables
        self._d_model, self._d_ff = experts.d_model, experts.d_ff
        self._pipelines: dict[Program, Any] = {}
        self._silu = device.compiled(_file("float_silu"), "float_silu")
        stacks = (experts.gate, experts.up, experts.down)
        offsets = np.cumsum([0, *(-(-stack.data.shape[1] // 16) * 16 for stack in stacks)])
        self._arena = device.storage(int(offsets[-1]))
        for stack, offset in zip(stacks, offsets[:-1], strict=True):
            device.write(self._arena, stack.data[0], int(offset))
        placed = [PlacedMatrix(s.quant_type, int(o), 0) for s, o in zip(stacks, offsets[:-1], strict=True)]
        self._expert = PlacedExpert(0, *placed)

    def compute(self, rows: FloatRows) -> FloatRows:
        """Outputs f32 [n, d_model] of rows f32 [n, d_model]."""
        n = len(rows)
        numbers = np.arange(n)
        tables = call_tables(self._d_model, self._d_ff, [self._expert], [n], numbers, numbers, self._tunables)
        buffers = self._buffers(rows, tables)
        shape = (self._d_ff // 256, n * self._d_ff, *[0] * 6)
        silu = Dispatch(Program(Kind.SILU_QUANTISE), -1, shape, (-(-n * self._d_ff // 64), 1), 0)
        stages = [
            *((dispatch, "rows", "inner") for dispatch in tables.first_stage),
            (silu, "inner", "hidden"),
            *((dispatch, "hidden", "outputs") for dispatch in tables.second_stage),
        ]
        dispatches = [dispatch for dispatch, _, _ in stages]
        self._device.write_shapes(buffers["shapes"], [dispatch.shape for dispatch in dispatches])
        steps = [
            Step(self._pipeline(dispatch.program), self._bind(buffers, inputs, outputs), number, dispatch.groups)
            for number, (dispatch, inputs, outputs) in enumerate(stages)
        ]
        n_bytes = 4 * n * self._d_model
        number = 0
        for batch in submissions(dispatches):
            last = number + len(batch) == len(steps)
            copy = (buffers["outputs"], buffers["readback"], n_bytes) if last else None
            self._device.submit(steps[number : number + len(batch)], copy)
            number += len(batch)
        mapping = self._device.map_for_reading(buffers["readback"], n_bytes)
        return self._device.read_mapped(buffers["readback"], mapping, n_bytes).view(np.float32).reshape(n, -1)

    @cache  # noqa: B019  (a benchmark's object lives as long as the benchmark)
    def _made(self, n: int, n_tasks: int) -> dict[str, Any]:
        d_model, d_ff, storage = self._d_model, self._d_ff, self._device.storage
        return {
            "rows": storage(4 * n * d_model), "inner": storage(8 * n * d_ff), "hidden": storage(4 * n * d_ff),
            "outputs": storage(4 * n * d_model), "tasks": storage(32 * n_tasks), "pairs": storage(16 * n),
            "shapes": self._device.uniforms(256), "readback": self._device.readback(4 * n * d_model),
        }  # fmt: skip

    def _buffers(self, rows: FloatRows, tables: CallTables) -> dict[str, Any]:
        made = self._made(len(rows), len(tables.tasks))
        uploads: dict[str, npt.NDArray[Any]] = {"rows": rows, "tasks": tables.tasks, "pairs": tables.pairs}
        for name, data in uploads.items():
            self._device.write(made[name], data)
        return made

    def _bind(self, b: dict[str, Any], inputs: str, outputs: str) -> Any:
        return self._device.bind(Bindings(self._arena, b[inputs], b[outputs], b["tasks"], b["pairs"], b["shapes"]))

    def _pipeline(self, program: Program) -> Any:
        if program.quant_type is None:
            return self._silu
        if program not in self._pipelines:
            names = ("float_matmul", TYPE_FILES[program.quant_type], BODIES[program.kind])
            header = f"const LANES = {self._tunables.lanes}u;\n"
            self._pipelines[program] = self._device.compiled(header + "\n".join(map(_file, names)), names[-1])
        return self._pipelines[program]
