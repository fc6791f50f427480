"""One call on the GPU: a set of buffers that takes rows and tables, runs the passes and returns the outputs.

`gpu.kernel` keeps two of them, so that the device computes one call while another is uploaded or read. Nothing is
checked here: rows, ids and experts are checked and placed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvasir.experts import FloatRows
from kvasir.kernels.api import EncodedRows
from kvasir.kernels.gpu.device import Bindings, GpuDevice, Step
from kvasir.kernels.gpu.shaders import Kind, Program
from kvasir.kernels.gpu.tables import CallTables, Dispatch, row_dispatch, submissions

BLOCK = 256
ACTIVATION_BYTES = 4 * 76  # per block
LEAST_BYTES = 4096
UNPACK = Program(Kind.UNPACK_ROWS)
QUANTISE = Program(Kind.SILU_QUANTISE)


class SlotSet:
    """The buffers of one call; they grow as needed and are reused."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._buffers: dict[str, Any] = {}
        self._groups: dict[tuple[str, int], Any] = {}
        self._mapping: Any = None
        self._outputs_shape = (0, 0)

    def begin(self, rows: EncodedRows, d_model: int, d_ff: int, tables: CallTables, arenas: Sequence[Any]) -> None:
        """Upload packed rows and tables, and start all passes. `finish` before the next `begin`."""
        n_rows, n_pairs = len(rows), len(tables.pairs) // 2
        self._outputs_shape = (n_pairs, d_model)
        steps = [
            row_dispatch(UNPACK, d_model // BLOCK, n_rows),
            *tables.first_stage,
            row_dispatch(QUANTISE, d_ff // BLOCK, n_pairs),
            *tables.second_stage,
        ]
        self._make_room(n_rows, n_pairs, d_model, d_ff, len(tables.tasks), len(steps))
        self._device.write(self._buffers["packed"], _whole_words(rows))
        self._device.write(self._buffers["tasks"], tables.tasks)
        self._device.write(self._buffers["pairs"], tables.pairs)
        self._device.write_shapes(self._buffers["shapes"], [step.shape for step in steps])
        names = ["unpack", *["first"] * len(tables.first_stage), "quantise", *["second"] * len(tables.second_stage)]
        self._submit(steps, [self._group(name, step, arenas) for name, step in zip(names, steps, strict=True)])

    def finish(self) -> FloatRows:
        """Wait for the outputs: f32 [n_pairs, d_model], in the order of the tables."""
        copied = self._device.read_mapped(self._buffers["readback"], self._mapping, self._output_bytes)
        return copied.view(np.float32).reshape(self._outputs_shape)

    @property
    def _output_bytes(self) -> int:
        return 4 * self._outputs_shape[0] * self._outputs_shape[1]

    def _submit(self, dispatches: Sequence[Dispatch], groups: Sequence[Any]) -> None:
        copy = (self._buffers["outputs"], self._buffers["readback"], self._output_bytes)
        number = 0
        for batch in submissions(dispatches):
            steps = [
                Step(self._device.pipeline(dispatch.program), groups[i], i, dispatch.groups)
                for i, dispatch in enumerate(batch, start=number)
            ]
            number += len(batch)
            self._device.submit(steps, copy if number == len(dispatches) else None)
        self._mapping = self._device.map_for_reading(self._buffers["readback"], self._output_bytes)

    def _make_room(self, n_rows: int, n_pairs: int, d_model: int, d_ff: int, n_tasks: int, n_steps: int) -> None:
        wanted = {
            "packed": n_rows * d_model // BLOCK * 261 + 8,
            "row_activations": n_rows * d_model // BLOCK * ACTIVATION_BYTES,
            "inner": n_pairs * 2 * d_ff * 4,
            "slot_activations": n_pairs * d_ff // BLOCK * ACTIVATION_BYTES,
            "outputs": n_pairs * d_model * 4,
            "tasks": n_tasks * 32,
            "pairs": n_pairs * 16,
            "shapes": n_steps * self._device.shape_stride,
            "readback": n_pairs * d_model * 4,
        }
        for name, n_bytes in wanted.items():
            held = self._buffers.get(name)
            if held is None or held.size < n_bytes:
                self._grow(name, max(LEAST_BYTES, 1 << (n_bytes - 1).bit_length()))

    def _grow(self, name: str, n_bytes: int) -> None:
        self._groups.clear()
        if name == "readback":
            self._buffers[name] = self._device.readback(n_bytes)
        elif name == "shapes":
            self._buffers[name] = self._device.uniforms(-(-n_bytes // self._device.shape_stride))
        else:
            self._buffers[name] = self._device.storage(n_bytes)

    def _group(self, name: str, step: Dispatch, arenas: Sequence[Any]) -> Any:
        key = (name, step.arena)
        if key not in self._groups:
            b = self._buffers
            weights = b["tasks"] if step.arena < 0 else arenas[step.arena]
            inputs, outputs = {
                "unpack": (b["packed"], b["row_activations"]),
                "first": (b["row_activations"], b["inner"]),
                "quantise": (b["inner"], b["slot_activations"]),
                "second": (b["slot_activations"], b["outputs"]),
            }[name]
            bindings = Bindings(weights, inputs, outputs, b["tasks"], b["pairs"], b["shapes"])
            self._groups[key] = self._device.bind(bindings)
        return self._groups[key]


def _whole_words(rows: EncodedRows) -> npt.NDArray[np.uint8]:
    """Return the bytes of all rows, padded with zeros to a multiple of 4."""
    flat = rows.reshape(-1)
    return flat if len(flat) % 4 == 0 else np.concatenate([flat, np.zeros(-len(flat) % 4, np.uint8)])
