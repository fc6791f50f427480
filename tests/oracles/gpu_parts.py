"""Parts of the WGSL kernel by themselves, on any device: what the golden vectors ask for below a whole expert.

Texts are put together from the product's shader files and a small `main` of the test's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvasir.experts import WeightMatrix
from kvasir.kernels.api import EncodedRows
from kvasir.kernels.gpu.device import Bindings, GpuDevice, Step
from kvasir.kernels.gpu.shaders import PAIRS_A_TASK, Kind, Program, shader_file
from kvasir.kernels.gpu.tables import matrix_dispatches, row_dispatch
from kvasir.kernels.oracle.weights import weight_exponent

U32 = npt.NDArray[np.uint32]
ACTIVATION_WORDS = 76

WIDTHS = {1: ("i32", "u32"), 4: ("vec4<i32>", "vec4<u32>")}
NUMBERS = """
@group(0) @binding(1) var<storage, read> inputs: array<Uints>;
@group(0) @binding(2) var<storage, read_write> outputs: array<Uints>;
"""
MAIN = """
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let n = arrayLength(&OUTPUTS);
  if (id.x < n) { OUTPUTS[id.x] = VALUE; }
}
"""
ROWS = "fn row_value(row: u32, column: u32) -> u32 { return inputs[row * shape.n_blocks * 256u + column]; }"


class GpuParts:
    """Programs and passes of one device, each run alone and read back."""

    def __init__(self, device: GpuDevice) -> None:
        self.device = device

    def round(self, width: int, low: U32, high: U32, exponent: U32) -> U32:
        """Step 4 of each number, as scalars or as vectors of four."""
        value = "round_output(Wide(inputs[id.x], inputs[n + id.x]), bitcast<Ints>(inputs[2u * n + id.x]))"
        return self._each(_exact(width, value), [low, high, exponent])

    def scale(self, half_bits: U32, ew: int) -> U32:
        """Step 2 of each f16."""
        return self._each(_exact(1, f"bitcast<u32>(fixed_scale(inputs[id.x], {ew}u))"), [half_bits])

    def silu(self, gate: U32, up: U32) -> U32:
        """Step 5 of each pair of f32."""
        files = [shader_file(name) for name in ("dot_packed", "activations", "silu")]
        main = MAIN.replace("OUTPUTS", "activations").replace("VALUE", "silu_mul(inputs[id.x], inputs[n + id.x])")
        return self._each("\n".join([*files, main]), [gate, up])

    def quantise(self, rows: U32, dot: str = "dot_packed") -> U32:
        """Step 1 of f32 rows [n, cols]: activations [n, blocks, 76]."""
        n_rows, n_blocks = rows.shape[0], rows.shape[1] // 256
        parts = [shader_file(dot), shader_file("activations"), ROWS, shader_file("quantise")]
        shape = row_dispatch(Program(Kind.SILU_QUANTISE), n_blocks, n_rows).shape
        n_words = n_rows * n_blocks * ACTIVATION_WORDS
        return self._run("\n".join(parts), rows, n_words, shape, n_rows).reshape(n_rows, n_blocks, ACTIVATION_WORDS)

    def unpack(self, rows: EncodedRows) -> U32:
        """Packed rows as activations [n, blocks, 76]."""
        n_rows, n_blocks = rows.shape[0], rows.shape[1] // 261
        dispatch = row_dispatch(Program(Kind.UNPACK_ROWS), n_blocks, n_rows)
        words = np.frombuffer(rows.tobytes() + bytes(8 - rows.size % 4), np.uint32)
        pipeline = self.device.pipeline(dispatch.program)
        n_words = n_rows * n_blocks * ACTIVATION_WORDS
        result = self._dispatch(pipeline, words, n_words, dispatch.shape, (n_rows, 1))
        return result.reshape(n_rows, n_blocks, ACTIVATION_WORDS)

    def multiply(self, kind: Kind, matrix: WeightMatrix, activations: U32) -> U32:
        """Steps 3 and 4 with one program: the bits of f32 [n_rows, n_out]."""
        n_rows, width = len(activations), PAIRS_A_TASK[kind]
        ew = weight_exponent(matrix)
        starts = range(0, n_rows, width)
        tasks = np.array([(0, ew, i, min(width, n_rows - i), 0, 0, 0, 0) for i in starts], np.uint32)
        pairs = np.repeat(np.arange(n_rows, dtype=np.uint32), 2)
        widths = (matrix.n_out, matrix.n_in, matrix.n_out)
        (dispatch,) = matrix_dispatches(Program(kind, matrix.quant_type), 0, widths, 0, len(tasks), self.device.lanes)
        weights = np.frombuffer(matrix.data.tobytes() + bytes(-len(matrix.data) % 16), np.uint32)
        result = self._dispatch(
            self.device.pipeline(dispatch.program), activations, n_rows * matrix.n_out,
            dispatch.shape, dispatch.groups, (weights, tasks, pairs),
        )  # fmt: skip
        return result.reshape(n_rows, matrix.n_out)

    def _each(self, text: str, inputs: Sequence[U32]) -> U32:
        n = len(inputs[0])
        padded = [np.concatenate([part, np.zeros(-n % 4, np.uint32)]) for part in inputs]
        return self._run(text, np.concatenate(padded), len(padded[0]), (0,) * 8, -(-len(padded[0]) // 64))[:n]

    def _run(self, text: str, inputs: U32, n_outputs: int, shape: tuple[int, ...], groups: int) -> U32:
        return self._dispatch(self.device.compiled(text, "a part"), inputs, n_outputs, shape, (groups, 1))

    def _dispatch(
        self,
        pipeline: object,
        inputs: U32,
        n_outputs: int,
        shape: tuple[int, ...],
        groups: tuple[int, int],
        others: tuple[U32, U32, U32] | None = None,
    ) -> U32:
        nothing = np.zeros(8, np.uint32)
        weights, tasks, pairs = others or (nothing, nothing, nothing)
        filled: list[Any] = []
        for data in (weights, inputs, np.zeros(n_outputs, np.uint32), tasks, pairs):
            buffer = self.device.storage(data.nbytes)
            self.device.write(buffer, data)
            filled.append(buffer)
        uniforms, readback = self.device.uniforms(1), self.device.readback(4 * n_outputs)
        self.device.write_shapes(uniforms, [shape])
        bindings = Bindings(filled[0], filled[1], filled[2], filled[3], filled[4], uniforms)
        step = Step(pipeline, self.device.bind(bindings), 0, groups)
        self.device.submit([step], (filled[2], readback, 4 * n_outputs))
        mapping = self.device.map_for_reading(readback, 4 * n_outputs)
        return self.device.read_mapped(readback, mapping, 4 * n_outputs).view(np.uint32)


def _exact(width: int, value: str) -> str:
    ints, uints = WIDTHS[width]
    aliases = f"alias Ints = {ints};\nalias Uints = {uints};"
    main = MAIN.replace("OUTPUTS", "outputs").replace("VALUE", value)
    return "\n".join([aliases, shader_file("exact"), NUMBERS, main])
