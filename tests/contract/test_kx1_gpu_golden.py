"""KX1 in WGSL must meet the golden vectors of tests/golden/kx1/ to the bit, part by part and whole, through wgpu.

The device is Mesa's lavapipe, which computes on the CPU; where it is missing these tests fail, they do not skip. Every
program is tried: both widths of matvec, tiles, and both ways to multiply four bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as Quant

from kvasir.errors import KernelError
from kvasir.experts import ExpertStack, LayerExperts, WeightMatrix
from kvasir.kernels.gpu.device import GpuDevice, open_device
from kvasir.kernels.gpu.kernel import GpuKX1Kernel
from kvasir.kernels.gpu.shaders import PAIRS_A_TASK, Kind
from kvasir.kernels.gpu.tables import Tunables
from kvasir.kernels.kx1 import KX1Kernel
from kvasir.kernels.oracle.rows import unpack
from kvasir.kernels.selftest_inputs import adversarial_rows, made_weights, plain_rows, words
from tests.contract.test_kx1_golden import (
    FROZEN_FINGERPRINT,
    Case,
    array,
    cases,
    finite,
    floats,
    made_layer,
    rows_named,
    same_bits,
    sha256,
)
from tests.oracles.gpu_parts import GpuParts

U32 = npt.NDArray[np.uint32]
ALWAYS, NEVER = 1, 1 << 30  # pairs from which tiles are used


@pytest.fixture(scope="module")
def device() -> GpuDevice:
    return open_device(software=True)


@pytest.fixture(scope="module")
def cpu() -> KX1Kernel:
    return KX1Kernel(isa="scalar", n_threads=2)


@pytest.fixture
def parts(device: GpuDevice) -> GpuParts:
    return GpuParts(device)


@pytest.fixture(params=[NEVER, ALWAYS], ids=["matvec", "tiled"])
def kernel(request: pytest.FixtureRequest, device: GpuDevice, cpu: KX1Kernel) -> GpuKX1Kernel:
    return GpuKX1Kernel(device, cpu, tunables=Tunables(tiled_from=request.param))


def activations_of(packed: npt.NDArray[np.uint8]) -> U32:
    """What docs/reference/kx1.md's packed rows are as activations."""
    quantised = unpack(packed)
    n_rows, n_blocks = quantised.codes.shape[:2]
    multipliers = quantised.multipliers.astype(np.int64)
    sums = quantised.codes.reshape(n_rows, n_blocks, 8, 32).sum(axis=-1, dtype=np.int64) * multipliers
    wanted = np.empty((n_rows, n_blocks, 76), np.uint32)
    wanted[..., :64] = np.ascontiguousarray(quantised.codes).view(np.uint32)
    wanted[..., 64:72] = sums.astype(np.int32).view(np.uint32)
    wanted[..., 72] = (multipliers << (4 * np.arange(8))).sum(axis=-1)
    wanted[..., 73] = quantised.shifts
    wanted[..., 74] = quantised.row_exponents[:, None]
    wanted[..., 75] = quantised.exponents
    return wanted


def test_the_fingerprint_is_every_builds(kernel: GpuKX1Kernel) -> None:
    assert kernel.fingerprint == FROZEN_FINGERPRINT
    assert kernel.device.has_packed_dot


@pytest.mark.parametrize("lanes", [1, 2, 8, 16])
def test_the_fingerprint_does_not_depend_on_lanes_or_packed_dots(device: GpuDevice, cpu: KX1Kernel, lanes: int) -> None:
    device.use(lanes, has_packed_dot=lanes > 2)
    try:
        assert GpuKX1Kernel(device, cpu, tunables=Tunables(lanes)).fingerprint == FROZEN_FINGERPRINT
    finally:
        device.use(Tunables().lanes, has_packed_dot=True)


@pytest.mark.parametrize("case", cases("scale"))
def test_scales_become_fixed_point(parts: GpuParts, case: Case) -> None:
    fixed = parts.scale(array(case, "scales").astype(np.uint32), case["ew"])
    assert fixed.view(np.int32).tolist() == array(case, "fixed").tolist()


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("case", cases("round"))
def test_outputs_are_rounded(parts: GpuParts, case: Case, width: int) -> None:
    low, high = array(case, "acc").astype(np.uint32).T
    outputs = parts.round(width, low, high, array(case, "exponent").astype(np.int32).view(np.uint32))
    same_bits(outputs.view(np.float32), floats(case, "outputs"))


@pytest.mark.parametrize("case", cases("silu"))
def test_silu(parts: GpuParts, case: Case) -> None:
    outputs = parts.silu(array(case, "gate"), array(case, "up"))
    same_bits(outputs.view(np.float32), floats(case, "outputs"))


@pytest.mark.parametrize("case", cases("silu hash"))
def test_silu_of_many(parts: GpuParts, case: Case) -> None:
    n = case["n"]
    gate, up = finite(words(900, n)), finite(words(901, n))
    gate[n // 2 :] = plain_rows(1, n // 2, 902)[0] * 32
    up[n // 2 :] = plain_rows(1, n // 2, 903)[0]
    assert sha256(parts.silu(gate.view(np.uint32), up.view(np.uint32))) == case["sha256"]


@pytest.mark.parametrize("dot", ["dot_packed", "dot_plain"])
@pytest.mark.parametrize("case", cases("quantise"))
def test_rows_are_quantised(parts: GpuParts, case: Case, dot: str) -> None:
    wanted = activations_of(array(case, "packed"))
    assert np.array_equal(parts.quantise(array(case, "rows"), dot), wanted)


@pytest.mark.parametrize("case", cases("quantise"))
def test_packed_rows_are_unpacked(parts: GpuParts, case: Case) -> None:
    packed = array(case, "packed")
    assert np.array_equal(parts.unpack(packed), activations_of(packed))


@pytest.mark.parametrize("kind", PAIRS_A_TASK)
@pytest.mark.parametrize("case", cases("matmul"))
def test_matmul(parts: GpuParts, cpu: KX1Kernel, case: Case, kind: Kind) -> None:
    matrix = WeightMatrix(Quant[case["type"]], case["n_out"], case["n_in"], array(case, "weights"))
    activations = activations_of(cpu.encode_rows(rows_named(case["rows"])))
    same_bits(parts.multiply(kind, matrix, activations).view(np.float32), floats(case, "outputs"))


@pytest.mark.parametrize("kind", PAIRS_A_TASK)
@pytest.mark.parametrize("case", cases("matmul hash"))
def test_matmul_of_the_widest_rows(parts: GpuParts, cpu: KX1Kernel, case: Case, kind: Kind) -> None:
    quant_type, n_out, n_in = Quant[case["type"]], case["n_out"], case["n_in"]
    matrix = WeightMatrix(quant_type, n_out, n_in, made_weights(quant_type, n_out, n_in, case["seed"], case["weights"]))
    rows = np.concatenate([adversarial_rows(n_in, n_in), plain_rows(3, n_in, n_in + 1)])
    activations = parts.quantise(rows.view(np.uint32))
    assert np.array_equal(activations, activations_of(cpu.encode_rows(rows)))
    assert sha256(parts.multiply(kind, matrix, activations)) == case["sha256"]


@pytest.mark.parametrize("case", cases("refuse"))
def test_forbidden_packed_rows_are_refused(kernel: GpuKX1Kernel, case: Case) -> None:
    quant_type, cols = Quant.Q8_0, case["cols"]
    matrix = ExpertStack(quant_type, 512, cols, made_weights(quant_type, 512, cols, 1)[None])
    loaded = kernel.load(LayerExperts(0, matrix, matrix, matrix))
    for row in array(case, "packed"):
        with pytest.raises(KernelError, match=r"code -128|multiplier 0"):
            loaded.compute(row[None], np.zeros(1, np.int32), np.zeros(1, np.int32))


@pytest.mark.parametrize("case", cases("expert"))
def test_experts(kernel: GpuKX1Kernel, case: Case) -> None:
    packed = array(case, "packed")
    numbers = np.arange(len(packed), dtype=np.int32)
    same_bits(kernel.load(made_layer(case)).compute(packed, numbers, 0 * numbers), floats(case, "outputs"))


@pytest.mark.parametrize("case", cases("expert hash"))
def test_experts_of_full_shape(kernel: GpuKX1Kernel, case: Case) -> None:
    packed = kernel.encode_rows(plain_rows(case["n_rows"], case["d_model"], case["rows_seed"]))
    numbers = np.arange(len(packed), dtype=np.int32)
    assert sha256(kernel.load(made_layer(case)).compute(packed, numbers, 0 * numbers)) == case["sha256"]
