"""The native KX1 kernel against the numpy oracle, bit for bit, in every grouping; and what it refuses."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as Quant
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.errors import ConfigError, KernelError
from kvasir.experts import ExpertStack, FloatRows, LayerExperts, WeightMatrix, row_bytes
from kvasir.kernels import native
from kvasir.kernels.api import EncodedRows, Pairs
from kvasir.kernels.checks import KX1_PACKED_BLOCK
from kvasir.kernels.kx1 import KX1Kernel, LoadedKX1Experts
from kvasir.kernels.oracle.kernel import NumpyKX1Kernel
from kvasir.kernels.oracle.rows import quantise
from kvasir.kernels.oracle.steps import ExactMatrix, matmul
from kvasir.kernels.selftest_inputs import adversarial_rows, made_weights, plain_rows

D_MODEL, D_FF, N_EXPERT = 512, 256, 5
ISAS = native.load().isa_names


def stack(quant_type: Quant, n_out: int, n_in: int, seed: int, n_expert: int = N_EXPERT) -> ExpertStack:
    matrices = [made_weights(quant_type, n_out, n_in, seed + e).reshape(-1) for e in range(n_expert)]
    return ExpertStack(quant_type, n_out, n_in, np.stack(matrices))


def layer_experts(types: Sequence[Quant] = (Quant.Q4_K, Quant.Q5_K, Quant.Q6_K)) -> LayerExperts:
    gate, up, down = types
    return LayerExperts(
        3, stack(gate, D_FF, D_MODEL, 100), stack(up, D_FF, D_MODEL, 200), stack(down, D_MODEL, D_FF, 300)
    )


EXPERTS = layer_experts()
ROWS = np.concatenate([adversarial_rows(D_MODEL, 1), plain_rows(23, D_MODEL, 2)])
ENCODED = NumpyKX1Kernel().encode_rows(ROWS)


def as_pairs(numbers: Sequence[int] | npt.NDArray[np.integer]) -> Pairs:
    return np.asarray(numbers, np.int32)


def same_bits(a: FloatRows, b: FloatRows) -> bool:
    return a.shape == b.shape and bool((a.view(np.uint32) == b.view(np.uint32)).all())


@pytest.fixture(scope="module")
def every_output() -> FloatRows:
    """[n_rows, N_EXPERT, d_model] from the oracle."""
    oracle = NumpyKX1Kernel().load(EXPERTS)
    n = len(ENCODED)
    return oracle.compute(
        ENCODED, as_pairs(np.repeat(np.arange(n), N_EXPERT)), as_pairs(np.tile(np.arange(N_EXPERT), n))
    ).reshape(n, N_EXPERT, D_MODEL)


def test_rows_are_packed_as_the_oracle_packs_them() -> None:
    assert (KX1Kernel(n_threads=2).encode_rows(ROWS) == ENCODED).all()


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("isa", ISAS)
def test_every_build_and_thread_count_gives_the_oracle_bits(isa: str, n_threads: int, every_output: FloatRows) -> None:
    loaded = KX1Kernel(isa, n_threads).load(EXPERTS)
    rng = np.random.default_rng(n_threads)
    pair_rows, pair_ids = rng.integers(0, len(ENCODED), 300), rng.integers(0, N_EXPERT, 300)
    outputs = loaded.compute(ENCODED, as_pairs(pair_rows), as_pairs(pair_ids))
    assert same_bits(outputs, every_output[pair_rows, pair_ids])


@given(st.lists(st.tuples(st.integers(0, 39), st.integers(0, N_EXPERT - 1)), max_size=40), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_an_output_does_not_depend_on_the_call_around_it(
    every_output: FloatRows, pairs: list[tuple[int, int]], n_threads: int
) -> None:
    pair_rows, pair_ids = as_pairs([row for row, _ in pairs]), as_pairs([expert for _, expert in pairs])
    outputs = KX1Kernel(n_threads=n_threads).load(EXPERTS).compute(ENCODED, pair_rows, pair_ids)
    assert same_bits(outputs, every_output[pair_rows, pair_ids])


def test_all_rows_of_one_expert_are_cut_into_units(every_output: FloatRows) -> None:
    pair_rows = np.arange(300) % len(ENCODED)
    outputs = KX1Kernel(n_threads=2).load(EXPERTS).compute(ENCODED, as_pairs(pair_rows), as_pairs(np.full(300, 4)))
    assert same_bits(outputs, every_output[pair_rows, 4])


def test_a_call_larger_than_the_working_memory_is_worked_off_in_parts() -> None:
    """More pairs than KX1_WORK_BYTES hold and more different rows than KX1_ROWS_BYTES hold."""
    small = LayerExperts(
        0, stack(Quant.Q4_K, 256, 256, 1, 2), stack(Quant.Q4_K, 256, 256, 2, 2), stack(Quant.Q6_K, 256, 256, 3, 2)
    )
    loaded = KX1Kernel().load(small)
    distinct = NumpyKX1Kernel().encode_rows(plain_rows(16, 256, 9))
    n = 66_016
    encoded, ids = np.tile(distinct, (n // 16, 1)), as_pairs(np.arange(n) // 16 % 2)
    outputs = loaded.compute(encoded, as_pairs(np.arange(n)), ids).reshape(-1, 2, 16, 256)
    few = loaded.compute(distinct, as_pairs(np.tile(np.arange(16), 2)), as_pairs(np.repeat([0, 1], 16)))
    assert (outputs.view(np.uint32) == few.reshape(2, 16, 256).view(np.uint32)).all()


def test_a_fused_gate_up_tensor_is_read_with_its_stride(every_output: FloatRows) -> None:
    types = (Quant.Q4_K, Quant.Q4_K, Quant.Q6_K)
    plain = layer_experts(types)
    fused = np.concatenate([plain.gate.data, plain.up.data], axis=1)
    half = plain.gate.data.shape[1]
    strided = LayerExperts(
        3,
        ExpertStack(Quant.Q4_K, D_FF, D_MODEL, fused[:, :half]),
        ExpertStack(Quant.Q4_K, D_FF, D_MODEL, fused[:, half:]),
        plain.down,
    )
    pair_rows, pair_ids = as_pairs([0, 1, 2, 3]), as_pairs([4, 0, 2, 4])
    kernel = KX1Kernel()
    assert same_bits(
        kernel.load(strided).compute(ENCODED, pair_rows, pair_ids),
        kernel.load(plain).compute(ENCODED, pair_rows, pair_ids),
    )


def test_no_pairs_and_no_rows_give_no_outputs() -> None:
    loaded = KX1Kernel().load(EXPERTS)
    assert loaded.compute(ENCODED, as_pairs([]), as_pairs([])).shape == (0, D_MODEL)
    assert loaded.compute(ENCODED[:0], as_pairs([]), as_pairs([])).shape == (0, D_MODEL)


def test_python_threads_may_compute_at_once(every_output: FloatRows) -> None:
    loaded = KX1Kernel(n_threads=3).load(EXPERTS)
    failures: list[int] = []

    def compute(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(8):
            rows, ids = rng.integers(0, len(ENCODED), 64), rng.integers(0, N_EXPERT, 64)
            if not same_bits(loaded.compute(ENCODED, as_pairs(rows), as_pairs(ids)), every_output[rows, ids]):
                failures.append(number)

    threads = [threading.Thread(target=compute, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("quant_type", [Quant.Q4_K, Quant.Q5_K, Quant.Q6_K, Quant.Q8_0])
@pytest.mark.parametrize("isa", ISAS)
def test_linear_gives_the_oracle_bits_for_several_matrices(isa: str, quant_type: Quant) -> None:
    matrices = [
        WeightMatrix(kind, n_out, D_MODEL, made_weights(kind, n_out, D_MODEL, n_out).reshape(-1))
        for kind, n_out in ((quant_type, 48), (Quant.Q6_K, 1), (quant_type, 300))
    ]
    wanted = [matmul(ExactMatrix.of(matrix), quantise(ROWS)) for matrix in matrices]
    for n_threads in (1, 3):
        kernel = KX1Kernel(isa, n_threads)
        prepared = [kernel.prepare(matrix) for matrix in matrices]
        for outputs, right in zip(kernel.linear(ROWS, prepared), wanted, strict=True):
            assert same_bits(outputs, right)
        alone = kernel.linear(ROWS[7:8], prepared)
        assert all(same_bits(a, right[7:8]) for a, right in zip(alone, wanted, strict=True))


@pytest.mark.parametrize(("n_terms", "limit"), [(1, 0.02), (2, 2e-4)])
def test_linear_of_many_rows_equals_its_parts_and_is_near_the_float_product(n_terms: int, limit: float) -> None:
    matrix = WeightMatrix(Quant.Q8_0, 40, D_MODEL, made_weights(Quant.Q8_0, 40, D_MODEL, 5).reshape(-1))
    rows = np.random.default_rng(0).standard_normal((300, D_MODEL)).astype(np.float32)
    kernel = KX1Kernel(n_threads=2)
    prepared = [kernel.prepare(matrix, n_terms)]
    whole = kernel.linear(rows, prepared)[0]
    parts = [kernel.linear(rows[start : start + 77], prepared)[0] for start in range(0, 300, 77)]
    assert same_bits(whole, np.concatenate(parts))
    exact = rows.astype(np.float64) @ gguf.dequantize(matrix.data.reshape(40, -1), Quant.Q8_0).astype(np.float64).T
    assert np.linalg.norm(whole - exact) < limit * np.linalg.norm(exact)


def two_terms(matrix: WeightMatrix, rows: FloatRows) -> FloatRows:
    """KX1 of the rows and of what their codes leave, from the oracle, added in f32 without infinities."""
    codes = quantise(rows)
    units = codes.multipliers.astype(np.float64) * np.exp2(codes.exponents.astype(np.float64) - 150)[..., None]
    kept = codes.codes.reshape(*units.shape, -1) * units[..., None]
    residual = (rows.astype(np.float64) - kept.reshape(rows.shape)).astype(np.float32)
    exact = ExactMatrix.of(matrix)
    with np.errstate(over="ignore"):
        sums = matmul(exact, codes) + matmul(exact, quantise(residual))
    return np.asarray(np.clip(sums, -np.finfo(np.float32).max, np.finfo(np.float32).max), np.float32)


@pytest.mark.parametrize("isa", ISAS)
def test_a_second_term_is_kx1_of_what_the_first_leaves(isa: str) -> None:
    """Also beside matrices of one term, for rows of zeros, of the largest values and of powers of two."""
    data = made_weights(Quant.Q8_0, 75, D_MODEL, 9).reshape(-1)
    largest = np.full(len(data), 127, np.uint8).reshape(-1, 34)
    largest[:, :2] = (0xFF, 0x7B)  # the largest f16
    matrices = [
        WeightMatrix(Quant.Q8_0, 75, D_MODEL, data),
        WeightMatrix(Quant.Q4_K, 40, D_MODEL, made_weights(Quant.Q4_K, 40, D_MODEL, 3).reshape(-1)),
        WeightMatrix(Quant.Q8_0, 75, D_MODEL, largest.reshape(-1)),
    ]
    rows = np.concatenate([ROWS, np.zeros((3, D_MODEL), np.float32), plain_rows(100, D_MODEL, 8)])
    wanted = [
        two_terms(matrices[0], rows),
        matmul(ExactMatrix.of(matrices[1]), quantise(rows)),
        two_terms(matrices[2], rows),
    ]
    for n_threads in (1, 3):
        kernel = KX1Kernel(isa, n_threads)
        prepared = [kernel.prepare(matrix, n) for matrix, n in zip(matrices, (2, 1, 2), strict=True)]
        for outputs, right in zip(kernel.linear(rows, prepared), wanted, strict=True):
            assert np.isfinite(outputs).all()
            assert same_bits(outputs, right)
        for n in (1, 2, 65):
            assert same_bits(kernel.linear(rows[:n], prepared)[0], wanted[0][:n])


def changed(at: int, value: int) -> EncodedRows:
    rows = ENCODED.copy()
    rows[3, at] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "pair_rows", "pair_ids", "said"),
    [
        (ENCODED, as_pairs([0]), as_pairs([-1]), "id -1"),
        (ENCODED, as_pairs([0, 1]), as_pairs([0, N_EXPERT]), f"id {N_EXPERT}"),
        (ENCODED, as_pairs([0]), as_pairs([10**6]), "id 1000000"),
        (ENCODED, as_pairs([-1]), as_pairs([0]), "row number -1"),
        (ENCODED, as_pairs([40]), as_pairs([0]), "row number 40"),
        (ENCODED[:0], as_pairs([0]), as_pairs([0]), "row number 0"),
        (ENCODED, as_pairs([0]), as_pairs([0, 1]), "1 pair_rows but 2"),
        (ENCODED, np.array([0], np.int64), as_pairs([0]), "int64"),
        (ENCODED, np.zeros((1, 1), np.int32), as_pairs([0]), "shape"),
        (ENCODED[:, :-1], as_pairs([0]), as_pairs([0]), "uint8"),
        (ENCODED[0], as_pairs([0]), as_pairs([0]), "shape"),
        (ENCODED.view(np.int8), as_pairs([0]), as_pairs([0]), "int8"),
        (changed(5, 0x80), as_pairs([0]), as_pairs([0]), "row 3 holds code -128"),
        (changed(KX1_PACKED_BLOCK + 255, 0x80), as_pairs([3]), as_pairs([0]), "row 3 holds code -128"),
        (changed(256, 0xF0), as_pairs([3]), as_pairs([0]), "multiplier 0"),
        (changed(KX1_PACKED_BLOCK + 259, 0x0F), as_pairs([3]), as_pairs([0]), "multiplier 0"),
    ],
)
@pytest.mark.parametrize("has_computed", [False, True])
def test_bad_input_is_refused(
    rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs, said: str, has_computed: bool
) -> None:
    loaded = KX1Kernel(n_threads=2).load(EXPERTS)
    if has_computed:
        loaded.read_scales()
    with pytest.raises(KernelError, match=said):
        loaded.compute(rows, pair_rows, pair_ids)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_refused(value: float) -> None:
    rows = plain_rows(4, D_MODEL, 1)
    rows[2, 500] = value
    kernel = KX1Kernel()
    matrix = kernel.prepare(WeightMatrix(Quant.Q8_0, 2, D_MODEL, made_weights(Quant.Q8_0, 2, D_MODEL, 1).reshape(-1)))
    for refuse in (lambda: kernel.encode_rows(rows), lambda: kernel.linear(rows, [matrix])):
        with pytest.raises(KernelError, match=r"row 2 holds .* at 500"):
            refuse()


def test_widths_and_types_that_kx1_lacks_are_refused_with_the_reason() -> None:
    kernel = KX1Kernel()
    with pytest.raises(KernelError, match="100 values"):
        kernel.encode_rows(np.zeros((1, 100), np.float32))
    with pytest.raises(KernelError, match="float64"):
        kernel.encode_rows(np.zeros((1, 256)))  # type: ignore[arg-type]
    floats = ExpertStack(Quant.F32, D_FF, D_MODEL, np.zeros((N_EXPERT, D_FF * D_MODEL * 4), np.uint8))
    assert "gate is F32" in str(kernel.refusal(LayerExperts(0, floats, EXPERTS.up, EXPERTS.down)))
    biased = LayerExperts(
        0, EXPERTS.gate, EXPERTS.up, EXPERTS.down, down_bias=np.zeros((N_EXPERT, D_MODEL), np.float32)
    )
    assert "biases" in str(kernel.refusal(biased))
    with pytest.raises(KernelError, match="biases"):
        kernel.load(biased)
    wide = WeightMatrix(Quant.Q8_0, 1, 32768, np.zeros(row_bytes(Quant.Q8_0, 32768), np.uint8))
    with pytest.raises(KernelError, match="32768 columns"):
        kernel.prepare(wide)
    narrow = WeightMatrix(Quant.Q8_0, 1, 256, np.zeros(272, np.uint8))
    for n_terms in (0, 3):
        with pytest.raises(KernelError, match=f"n_terms is {n_terms}"):
            kernel.prepare(narrow, n_terms)
    matrix = kernel.prepare(narrow)
    with pytest.raises(KernelError, match="256 columns"):
        kernel.linear(ROWS, [matrix])


def test_a_scale_that_is_not_finite_is_found_before_its_expert_is_computed() -> None:
    data = EXPERTS.down.data.copy()
    data[1, 208:210] = (0x00, 0x7C)  # infinity in f16, the first block's scale
    loaded = KX1Kernel().load(LayerExperts(3, EXPERTS.gate, EXPERTS.up, ExpertStack(Quant.Q6_K, D_MODEL, D_FF, data)))
    assert loaded.compute(ENCODED, as_pairs([0]), as_pairs([0])).shape == (1, D_MODEL)
    with pytest.raises(KernelError, match="layer 3, local expert 1, down: a scale is infinite"):
        loaded.compute(ENCODED, as_pairs([0]), as_pairs([1]))
    with pytest.raises(KernelError, match="local expert 1"):
        loaded.read_scales()


def test_the_environment_chooses_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVASIR_ISA", "scalar")
    assert KX1Kernel().isa_name == "scalar"
    monkeypatch.setenv("KVASIR_ISA", "sse9")
    with pytest.raises(ConfigError, match="KVASIR_ISA is 'sse9'"):
        KX1Kernel()
    monkeypatch.delenv("KVASIR_ISA")
    assert KX1Kernel().isa_name == ISAS[0]
    with pytest.raises(ConfigError, match="'sse9' cannot run here"):
        KX1Kernel("sse9")
    with pytest.raises(KernelError, match="n_threads is 0"):
        KX1Kernel(n_threads=0)


@pytest.mark.parametrize("isa", ISAS)
def test_every_build_has_the_oracle_fingerprint(isa: str) -> None:
    assert KX1Kernel(isa, 2).fingerprint == NumpyKX1Kernel().fingerprint


def test_loaded_experts_say_what_they_are() -> None:
    loaded = KX1Kernel().load(EXPERTS)
    assert isinstance(loaded, LoadedKX1Experts)
    assert (loaded.layer, loaded.n_expert, loaded.d_model) == (3, N_EXPERT, D_MODEL)
