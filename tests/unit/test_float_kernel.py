"""The float kernel: what the weights say, the same bits in C and numpy and in any call; and what it refuses."""

from __future__ import annotations

import threading

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as Quant

from kvasir.errors import KernelError
from kvasir.experts import ExpertStack, FloatRows, LayerExperts, WeightMatrix
from kvasir.kernels import native
from kvasir.kernels.api import Pairs, RowFormat
from kvasir.kernels.float_kernel import FloatExpertCache, FloatKernel, dequantised, is_dequantisable
from kvasir.kernels.oracle.rowops import NumpyRowOps
from kvasir.kernels.rowops import NativeRowOps
from tests.oracles.quantise import quantise

D_MODEL, D_FF, N_EXPERT, N_ROWS = 64, 96, 4, 12
Doubles = npt.NDArray[np.float64]


def normal(*shape: int, seed: int) -> FloatRows:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stack(quant_type: Quant, n_out: int, n_in: int, seed: int) -> ExpertStack:
    values = normal(N_EXPERT, n_out, n_in, seed=seed) / np.float32(n_in**0.5)
    return ExpertStack(quant_type, n_out, n_in, quantise(values, quant_type).reshape(N_EXPERT, -1))


def layer_experts(
    quant_type: Quant, *, d_model: int = D_MODEL, d_ff: int = D_FF, has_bias: bool = False
) -> LayerExperts:
    biases = [normal(N_EXPERT, n, seed=10 + n) if has_bias else None for n in (d_ff, d_ff, d_model)]
    return LayerExperts(
        2,
        stack(quant_type, d_ff, d_model, 1),
        stack(quant_type, d_ff, d_model, 2),
        stack(quant_type, d_model, d_ff, 3),
        *biases,
    )


def float64_expert(experts: LayerExperts, local_id: int, row: FloatRows) -> Doubles:
    def product(stacked: ExpertStack, bias: FloatRows | None, x: Doubles) -> Doubles:
        blocks = stacked.data[local_id].reshape(stacked.n_out, -1)
        weights = gguf.dequantize(blocks, stacked.quant_type).astype(np.float64)
        return np.asarray(weights @ x + (0 if bias is None else bias[local_id]))

    x = row.astype(np.float64)
    gate, up = product(experts.gate, experts.gate_bias, x), product(experts.up, experts.up_bias, x)
    return product(experts.down, experts.down_bias, gate / (1 + np.exp(-gate)) * up)


def as_pairs(numbers: object) -> Pairs:
    return np.asarray(numbers, np.int32)


ROWS = normal(N_ROWS, D_MODEL, seed=7)
EVERY_ROW, EVERY_ID = as_pairs(np.repeat(np.arange(N_ROWS), N_EXPERT)), as_pairs(np.tile(np.arange(N_EXPERT), N_ROWS))


@pytest.mark.parametrize("quant_type", [Quant.F32, Quant.F16, Quant.BF16, Quant.Q8_0, Quant.Q5_0, Quant.Q4_1])
@pytest.mark.parametrize("has_bias", [False, True])
def test_it_computes_what_the_weights_say(quant_type: Quant, has_bias: bool) -> None:
    experts = layer_experts(quant_type, has_bias=has_bias)
    kernel = FloatKernel(n_threads=2)
    outputs = kernel.load(experts).compute(kernel.encode_rows(ROWS), EVERY_ROW, EVERY_ID)
    wanted = [float64_expert(experts, e, ROWS[t]) for t, e in zip(EVERY_ROW, EVERY_ID, strict=True)]
    np.testing.assert_allclose(outputs, np.stack(wanted), atol=3e-6)


def test_c_and_numpy_give_the_same_bits_on_every_build_and_thread_count() -> None:
    experts = layer_experts(Quant.Q8_0, has_bias=True)
    twin = FloatKernel(ops=NumpyRowOps())
    wanted = twin.load(experts).compute(twin.encode_rows(ROWS), EVERY_ROW, EVERY_ID)
    for isa in native.load().isa_names:
        for n_threads in (1, 3):
            kernel = FloatKernel(ops=NativeRowOps(isa, n_threads))
            found = kernel.load(experts).compute(kernel.encode_rows(ROWS), EVERY_ROW, EVERY_ID)
            assert (found.view(np.uint32) == wanted.view(np.uint32)).all()
            assert kernel.fingerprint == twin.fingerprint


def test_a_pair_does_not_depend_on_the_call_around_it() -> None:
    kernel = FloatKernel()
    loaded, encoded = kernel.load(layer_experts(Quant.F16)), kernel.encode_rows(ROWS)
    every = loaded.compute(encoded, EVERY_ROW, EVERY_ID).reshape(N_ROWS, N_EXPERT, D_MODEL)
    rng = np.random.default_rng(0)
    for n_pairs in (1, 2, 5, 100):
        rows, ids = rng.integers(0, N_ROWS, n_pairs), rng.integers(0, N_EXPERT, n_pairs)
        some = loaded.compute(encoded, as_pairs(rows), as_pairs(ids))
        assert (some.view(np.uint32) == every[rows, ids].view(np.uint32)).all()
    assert loaded.compute(encoded, as_pairs([]), as_pairs([])).shape == (0, D_MODEL)


def test_encoded_rows_are_the_f32_bytes() -> None:
    kernel = FloatKernel()
    assert kernel.row_format is RowFormat.F32
    assert kernel.row_bytes(D_MODEL) == 4 * D_MODEL
    assert kernel.encode_rows(ROWS).tobytes() == ROWS.astype("<f4").tobytes()


@pytest.mark.parametrize(
    ("pair_rows", "pair_ids", "said"),
    [([0], [-1], "id -1"), ([0], [N_EXPERT], "id 4"), ([0], [10**6], "id 1000000"), ([N_ROWS], [0], "row number 12"),
     ([-1], [0], "row number -1"), ([0, 1], [0], "2 pair_rows but 1")],
)  # fmt: skip
def test_bad_pairs_are_refused(pair_rows: list[int], pair_ids: list[int], said: str) -> None:
    kernel = FloatKernel()
    with pytest.raises(KernelError, match=said):
        kernel.load(layer_experts(Quant.F32)).compute(kernel.encode_rows(ROWS), as_pairs(pair_rows), as_pairs(pair_ids))


def test_rows_of_the_wrong_shape_type_or_value_are_refused() -> None:
    kernel = FloatKernel()
    loaded = kernel.load(layer_experts(Quant.F32))
    bad = ROWS.copy()
    bad[3, 9] = np.nan
    with pytest.raises(KernelError, match="row 3 holds nan at 9"):
        kernel.encode_rows(bad)
    with pytest.raises(KernelError, match="row 3 holds nan at 9"):
        loaded.compute(bad.view(np.uint8), as_pairs([0]), as_pairs([0]))
    with pytest.raises(KernelError, match="float64"):
        kernel.encode_rows(ROWS.astype(np.float64))
    with pytest.raises(KernelError, match="uint8"):
        loaded.compute(kernel.encode_rows(ROWS)[:, :-4], as_pairs([0]), as_pairs([0]))


def test_types_without_a_float_form_are_refused() -> None:
    integers = ExpertStack(Quant.I8, D_FF, D_MODEL, np.zeros((N_EXPERT, D_FF * D_MODEL), np.uint8))
    experts = layer_experts(Quant.F32)
    wrong = LayerExperts(2, experts.gate, integers, experts.down)
    assert not is_dequantisable(Quant.I8)
    assert "up is I8" in str(FloatKernel().refusal(wrong))
    with pytest.raises(KernelError, match="up is I8"):
        FloatKernel().load(wrong)
    with pytest.raises(KernelError, match="I8"):
        dequantised(WeightMatrix(Quant.I8, D_FF, D_MODEL, integers.data[0]))


def test_f32_weights_at_an_odd_address_are_read_rightly() -> None:
    values = normal(3, 5, seed=1)
    unaligned = np.concatenate([np.zeros(1, np.uint8), values.reshape(-1).view(np.uint8)])[1:]
    found = dequantised(WeightMatrix(Quant.F32, 3, 5, unaligned))
    assert found.flags.aligned
    assert (found == values).all()


def test_the_cache_keeps_the_experts_used_last_within_its_budget() -> None:
    experts = layer_experts(Quant.F16)
    one = 4 * 3 * D_MODEL * D_FF
    cache = FloatExpertCache(2 * one)
    first = cache.expert(0, experts, 0)
    cache.expert(0, experts, 1)
    assert cache.expert(0, experts, 0) is first
    cache.expert(0, experts, 2)  # pushes out 1
    assert cache.n_bytes == 2 * one
    assert cache.expert(0, experts, 0) is first
    assert cache.expert(1, experts, 0) is not first  # of another load
    too_small = FloatExpertCache(one - 1)
    assert too_small.expert(0, experts, 0) is not too_small.expert(0, experts, 0)
    assert too_small.n_bytes == 0


def test_python_threads_may_compute_at_once() -> None:
    kernel = FloatKernel(n_threads=2, cache_bytes=4 * 3 * D_MODEL * D_FF)  # one expert: they push each other's out
    loaded, encoded = kernel.load(layer_experts(Quant.F16)), kernel.encode_rows(ROWS)
    wanted, found = loaded.compute(encoded, EVERY_ROW, EVERY_ID), {}

    def compute(number: int) -> None:
        found[number] = loaded.compute(encoded, EVERY_ROW, EVERY_ID)

    threads = [threading.Thread(target=compute, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all((outputs == wanted).all() for outputs in found.values())
