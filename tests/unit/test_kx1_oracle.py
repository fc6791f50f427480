"""The numpy KX1 kernel: against a transcription in Python's integers, against float64, and by its own laws."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as Quant
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.errors import KernelError
from kvasir.experts import ExpertStack, LayerExperts, WeightMatrix, row_bytes
from kvasir.kernels.oracle.kernel import NumpyKX1Kernel
from kvasir.kernels.oracle.rows import pack, quantise, unpack
from kvasir.kernels.oracle.steps import ExactMatrix, matmul, round_output, silu_mul
from kvasir.kernels.selftest_inputs import (
    WeightKind,
    adversarial_rows,
    legal_packed_rows,
    made_weights,
    plain_rows,
    words,
)
from tests.oracles import kx1_scalar

TYPES = (Quant.Q4_K, Quant.Q5_K, Quant.Q6_K, Quant.Q8_0)
KINDS: tuple[WeightKind, ...] = ("plain", "wild", "low", "high")

KERNEL = NumpyKX1Kernel()


def made_layer(
    types: tuple[Quant, Quant, Quant],
    d_model: int = 256,
    d_ff: int = 256,
    n_expert: int = 2,
    kind: WeightKind = "plain",
) -> LayerExperts:
    def stack(matrix: int, n_out: int, n_in: int) -> ExpertStack:
        seeds = range(matrix, 16 * n_expert + matrix, 16)
        return ExpertStack(
            types[matrix],
            n_out,
            n_in,
            np.stack([made_weights(types[matrix], n_out, n_in, seed, kind) for seed in seeds]),
        )

    return LayerExperts(7, stack(0, d_ff, d_model), stack(1, d_ff, d_model), stack(2, d_model, d_ff))


def pairs(*numbers: int) -> npt.NDArray[np.int32]:
    return np.array(numbers, np.int32)


# -- against the transcription ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rows_are_quantised_as_the_transcription_does(seed: int) -> None:
    rows = np.concatenate([adversarial_rows(512, seed), plain_rows(4, 512, seed)])
    packed = pack(quantise(rows))
    for row, mine in zip(rows, packed, strict=True):
        assert mine.tobytes() == kx1_scalar.packed(kx1_scalar.quantise(row.view(np.uint32).tolist()))


@pytest.mark.parametrize("quant_type", TYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_matmul_gives_the_bits_of_the_transcription(quant_type: Quant, kind: WeightKind) -> None:
    n_out, n_in = 3, 768
    data = made_weights(quant_type, n_out, n_in, 11, kind)
    rows = quantise(adversarial_rows(n_in, 12))
    matrix = ExactMatrix.of(WeightMatrix(quant_type, n_out, n_in, data))
    name = quant_type.name
    assert matrix.weight_exp == kx1_scalar.weight_exponent(name, data.tobytes())
    out = matmul(matrix, rows).view(np.uint32)
    for t in range(rows.n_rows):
        blocks = [
            kx1_scalar.Block(rows.codes[t, b].tolist(), rows.multipliers[t, b].tolist(), int(rows.exponents[t, b]))
            for b in range(n_in // 256)
        ]
        for r in range(n_out):
            row = data.reshape(n_out, -1)[r].tobytes()
            assert int(out[t, r]) == kx1_scalar.matmul_row(name, row, matrix.weight_exp, blocks)


finite_bits = st.integers(0, 2**32 - 1).filter(lambda bits: (bits >> 23) & 255 != 255)
tame_bits = st.floats(-40, 40, width=32).map(lambda value: int(np.float32(value).view(np.uint32)))


@given(st.lists(st.tuples(finite_bits | tame_bits, finite_bits | tame_bits), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_silu_gives_the_bits_of_the_transcription(cases: list[tuple[int, int]]) -> None:
    gate, up = (np.array(part, np.uint32) for part in zip(*cases, strict=True))
    out = silu_mul(gate.view(np.float32), up.view(np.float32)).view(np.uint32)
    assert out.tolist() == [kx1_scalar.silu_mul(g, u) for g, u in cases]


near_power = st.builds(
    lambda bits, by, sign: sign * ((1 << bits) + by),
    st.integers(0, 58),
    st.integers(-130, 130),
    st.sampled_from([1, -1]),
)


@given(near_power | st.integers(-(2**59), 2**59), st.integers(-230, 130))
@settings(max_examples=300, deadline=None)
def test_outputs_are_rounded_as_the_transcription_does(acc: int, exponent: int) -> None:
    out = round_output(np.array([acc], np.int64), np.array([exponent]))
    assert int(out[0]) == kx1_scalar.rounded(acc, exponent)


@given(st.integers(-(2**52), 2**52), st.integers(-120, 60))
@settings(max_examples=200, deadline=None)
def test_a_normal_output_is_what_ieee_conversion_gives(acc: int, exponent: int) -> None:
    with np.errstate(all="ignore"):
        exact = np.float32(np.float64(acc) * np.float64(2.0) ** exponent)  # exact in float64, then one rounding
    if np.isfinite(exact) and abs(exact) >= 2.0**-126:
        assert round_output(np.array([acc], np.int64), np.array([exponent]))[0] == exact.view(np.uint32)


# -- against floating point ------------------------------------------------------------------------------------------


def silu(g: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    result: npt.NDArray[np.float64] = g / (1 + np.exp(-g))
    return result


@pytest.mark.parametrize(
    "types",
    [
        (Quant.Q4_K, Quant.Q4_K, Quant.Q6_K),
        (Quant.Q5_K, Quant.Q5_K, Quant.Q5_K),
        (Quant.Q6_K, Quant.Q6_K, Quant.Q8_0),
        (Quant.Q8_0, Quant.Q8_0, Quant.Q4_K),
    ],
)
def test_gaussian_rows_come_close_to_float64(types: tuple[Quant, Quant, Quant]) -> None:
    layer = made_layer(types, 512, 256, 1)
    rows = np.random.default_rng(3).standard_normal((6, 512)).astype(np.float32)
    out = KERNEL.load(layer).compute(KERNEL.encode_rows(rows), pairs(0, 1, 2, 3, 4, 5), pairs(*[0] * 6))
    gate, up, down = (
        dequantize(stack.data[0].reshape(stack.n_out, -1), stack.quant_type).astype(np.float64)
        for stack in (layer.gate, layer.up, layer.down)
    )
    exact = (silu(rows @ gate.T) * (rows @ up.T)) @ down.T
    assert np.linalg.norm(out - exact) / np.linalg.norm(exact) < 2.5e-2
    for mine, wanted in zip(out.astype(np.float64), exact, strict=True):
        assert mine @ wanted / np.linalg.norm(mine) / np.linalg.norm(wanted) > 0.999


def test_silu_is_within_its_stated_error() -> None:
    gate = np.linspace(-31, 31, 40001).astype(np.float32)
    exact = silu(gate.astype(np.float64))
    out = silu_mul(gate, np.ones_like(gate)).astype(np.float64)
    is_normal = np.abs(exact) > 1e-12
    assert np.abs(out[is_normal] / exact[is_normal] - 1).max() < 1.3e-4


def test_quantised_rows_stay_within_half_a_code_of_the_row() -> None:
    rows = plain_rows(8, 1024, 5)
    quantised = quantise(rows)
    step = quantised.multipliers.astype(np.float64) * 2.0 ** (quantised.exponents[..., None] - 150.0)
    values = quantised.codes.reshape(8, 4, 8, 32) * step[..., None]
    error = np.abs(values - rows.reshape(values.shape))
    assert (error <= step[..., None] * (0.5 + 2**-6)).all()


# -- laws ------------------------------------------------------------------------------------------------------------


def finite_rows(words_drawn: list[int]) -> npt.NDArray[np.float32]:
    bits = words(words_drawn[0], 512)
    bits[: len(words_drawn)] = words_drawn
    bits = np.where((bits >> 23) & 255 == 255, bits & 0xBFFFFFFF, bits).astype(np.uint32)
    return bits.view(np.float32).reshape(1, 512)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64))
@settings(max_examples=60, deadline=None)
def test_any_finite_row_packs_and_unpacks_to_itself(drawn: list[int]) -> None:
    quantised = quantise(finite_rows(drawn))
    back = unpack(pack(quantised))
    assert np.array_equal(back.codes, quantised.codes)
    assert np.array_equal(back.multipliers, quantised.multipliers)
    assert np.array_equal(back.exponents, quantised.exponents)
    assert quantised.codes.min() >= -127
    assert quantised.multipliers.min() >= 1
    assert quantised.multipliers.max() <= 15


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_any_legal_packed_row_packs_again_to_the_same_bytes(seed: int) -> None:
    packed = legal_packed_rows(512, seed)
    assert np.array_equal(pack(unpack(packed)), packed)


@given(st.sampled_from(TYPES), st.binary(min_size=1, max_size=60), st.integers(0, 2**31), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_file_bytes_overflow(quant_type: Quant, drawn: bytes, seed: int, at_the_limit: bool) -> None:
    """Bits equal those of unbounded integers, whatever is in the file, also for the largest rows there are."""
    data = made_weights(quant_type, 1, 512, seed, "wild")
    data[: len(drawn)] = np.frombuffer(drawn, np.uint8)
    repaired = made_weights(quant_type, 1, 512, seed, "wild")
    blocks, whole = (d.reshape(-1, {Quant.Q8_0: 34}.get(quant_type, len(data) // 2)) for d in (data, repaired))
    for offset in {Quant.Q6_K: (208,), Quant.Q8_0: (0,)}.get(quant_type, (0, 2)):
        is_bad = blocks[:, offset + 1] & 0x7C == 0x7C
        blocks[is_bad, offset + 1] = whole[is_bad, offset + 1]
    rows = unpack(legal_packed_rows(512, seed)[1:] if at_the_limit else pack(quantise(finite_rows([seed]))))
    matrix = ExactMatrix.of(WeightMatrix(quant_type, 1, 512, data))
    out = matmul(matrix, rows).view(np.uint32)
    assert np.isfinite(out.view(np.float32)).all()
    for t in range(rows.n_rows):
        x = [
            kx1_scalar.Block(rows.codes[t, b].tolist(), rows.multipliers[t, b].tolist(), int(rows.exponents[t, b]))
            for b in range(2)
        ]
        assert int(out[t, 0]) == kx1_scalar.matmul_row(quant_type.name, data.tobytes(), matrix.weight_exp, x)


@pytest.mark.parametrize("quant_type", TYPES)
def test_the_widest_matrix_of_extremes_does_not_overflow(quant_type: Quant) -> None:
    n_in = 16384
    data = made_weights(quant_type, 1, n_in, 21, "low" if quant_type in (Quant.Q6_K, Quant.Q8_0) else "high")
    block_bytes = {Quant.Q8_0: 34}.get(quant_type, row_bytes(quant_type, 256))
    for offset in {Quant.Q6_K: (208,), Quant.Q8_0: (0,)}.get(quant_type, (0, 2)):
        data.reshape(-1, block_bytes)[:, offset : offset + 2] = (0xFF, 0x7B)  # 65504
    if quant_type in (Quant.Q4_K, Quant.Q5_K):
        data.reshape(-1, block_bytes)[:, 3] |= 0x80  # a negative dmin adds its sum to that of the codes
    rows = unpack(legal_packed_rows(n_in, 22)[1:])
    matrix = ExactMatrix.of(WeightMatrix(quant_type, 1, n_in, data))
    out = matmul(matrix, rows).view(np.uint32)
    block = kx1_scalar.Block(rows.codes[0, 0].tolist(), [15] * 8, 268)
    assert int(out[0, 0]) == kx1_scalar.matmul_row(quant_type.name, data.tobytes(), matrix.weight_exp, [block] * 64)


def test_a_result_does_not_depend_on_what_else_is_in_the_call() -> None:
    layer = made_layer((Quant.Q4_K, Quant.Q5_K, Quant.Q6_K), n_expert=3)
    loaded = KERNEL.load(layer)
    rows = KERNEL.encode_rows(np.concatenate([adversarial_rows(256, 4), plain_rows(80, 256, 5)]))
    drawn = words(6, 2 * 200).astype(np.int64)
    pair_rows, pair_ids = (drawn[:200] % len(rows)).astype(np.int32), (drawn[200:] % 3).astype(np.int32)
    together = loaded.compute(rows, pair_rows, pair_ids)
    for i in range(0, 200, 9):
        alone = loaded.compute(rows[pair_rows[i]][None], pairs(0), pair_ids[i : i + 1])
        assert alone.tobytes() == together[i].tobytes()


def test_a_slice_of_experts_computes_as_the_whole_layer_does() -> None:
    """`ew` belongs to one expert's matrix: other experts with far larger scales change nothing."""
    types = (Quant.Q4_K, Quant.Q4_K, Quant.Q8_0)
    plain, wild = made_layer(types), made_layer(types, kind="wild")
    gate, up, down = (
        ExpertStack(a.quant_type, a.n_out, a.n_in, np.concatenate([b.data, a.data]))
        for a, b in zip((plain.gate, plain.up, plain.down), (wild.gate, wild.up, wild.down), strict=True)
    )
    mixed = LayerExperts(7, gate, up, down)
    rows = KERNEL.encode_rows(plain_rows(3, 256, 8))
    whole = KERNEL.load(mixed).compute(rows, pairs(0, 1, 2), pairs(3, 2, 3))
    assert whole.tobytes() == KERNEL.load(plain).compute(rows, pairs(0, 1, 2), pairs(1, 0, 1)).tobytes()


def test_a_strided_stack_computes_as_its_copy_does() -> None:
    layer = made_layer((Quant.Q5_K, Quant.Q5_K, Quant.Q5_K))
    fused = np.concatenate([layer.gate.data, layer.up.data], axis=1)
    half = fused.shape[1] // 2
    gate, up = (ExpertStack(Quant.Q5_K, 256, 256, part) for part in (fused[:, :half], fused[:, half:]))
    rows = KERNEL.encode_rows(plain_rows(2, 256, 9))
    wanted = KERNEL.load(layer).compute(rows, pairs(0, 1), pairs(1, 0))
    strided = KERNEL.load(LayerExperts(7, gate, up, layer.down)).compute(rows, pairs(0, 1), pairs(1, 0))
    assert strided.tobytes() == wanted.tobytes()


def test_no_rows_and_no_pairs_give_no_outputs() -> None:
    loaded = KERNEL.load(made_layer((Quant.Q8_0, Quant.Q8_0, Quant.Q8_0)))
    assert loaded.compute(np.empty((0, 261), np.uint8), pairs(), pairs()).shape == (0, 256)
    assert KERNEL.encode_rows(np.empty((0, 512), np.float32)).shape == (0, 522)


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_refused_by_place(value: float) -> None:
    rows = plain_rows(300, 256, 1)
    rows[290, 17] = value
    with pytest.raises(KernelError, match=r"row 290 holds -?(nan|inf) at 17"):
        KERNEL.encode_rows(rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((1, 255), np.float32), "255 values"),
        (np.zeros((1, 0), np.float32), "0 values"),
        (np.zeros((1, 16640), np.float32), "16640 values"),
        (np.zeros((1, 256), np.float64), "float64"),
        (np.zeros(256, np.float32), r"shape \(256,\)"),
    ],
)
def test_rows_of_the_wrong_shape_or_type_are_refused(rows: npt.NDArray[np.float32], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        KERNEL.encode_rows(rows)


GOOD = legal_packed_rows(256, 1)


@pytest.mark.parametrize(
    ("rows", "pair_rows", "pair_ids", "message"),
    [
        (GOOD, pairs(3), pairs(0), "row number 3 does not exist; there are 3"),
        (GOOD, pairs(-1), pairs(0), "row number -1"),
        (GOOD, pairs(0), pairs(2), "local expert id 2 does not exist; there are 2"),
        (GOOD, pairs(0), pairs(-1), "local expert id -1"),
        (GOOD, pairs(0, 1), pairs(0), "2 pair_rows but 1 pair_ids"),
        (GOOD, np.zeros(1, np.int64), pairs(0), "int64"),
        (GOOD, pairs(0), np.zeros((1, 1), np.int32), r"shape \(1, 1\)"),
        (GOOD[:, :-1], pairs(0), pairs(0), "260"),
        (GOOD.view(np.int8), pairs(0), pairs(0), "int8"),
        (GOOD[0], pairs(0), pairs(0), r"\(261,\)"),
    ],
)
def test_bad_calls_are_refused_by_value(
    rows: npt.NDArray[np.uint8], pair_rows: npt.NDArray[np.int32], pair_ids: npt.NDArray[np.int32], message: str
) -> None:
    loaded = KERNEL.load(made_layer((Quant.Q4_K, Quant.Q4_K, Quant.Q6_K)))
    with pytest.raises(KernelError, match=message):
        loaded.compute(rows, pair_rows, pair_ids)


@pytest.mark.parametrize(
    ("at", "byte", "message"),
    [(5, 0x80, "row 1, block 0 has a code of -128"), (256, 0x10, "multiplier of 0"), (259, 0x0F, "multiplier of 0")],
)
def test_packed_rows_outside_the_format_are_refused(at: int, byte: int, message: str) -> None:
    rows = GOOD.copy()
    rows[1, at] = byte
    loaded = KERNEL.load(made_layer((Quant.Q4_K, Quant.Q4_K, Quant.Q6_K)))
    with pytest.raises(KernelError, match=message):
        loaded.compute(rows, pairs(0), pairs(0))


def test_weights_that_kx1_does_not_compute_are_refused_by_name() -> None:
    f16 = ExpertStack(Quant.F16, 256, 256, np.zeros((2, 256 * 512), np.uint8))
    good = made_layer((Quant.Q4_K, Quant.Q4_K, Quant.Q6_K))
    assert KERNEL.refusal(good) is None
    assert "gate is F16" in str(KERNEL.refusal(LayerExperts(7, f16, f16, good.down)))
    narrow = ExpertStack(Quant.Q8_0, 32, 256, np.zeros((2, 32 * 272), np.uint8))
    short = ExpertStack(Quant.Q8_0, 256, 32, np.zeros((2, 256 * 34), np.uint8))
    assert "down has 32 columns" in str(KERNEL.refusal(LayerExperts(7, narrow, narrow, short)))
    biased = LayerExperts(7, good.gate, good.up, good.down, gate_bias=np.zeros((2, 256), np.float32))
    assert "biases" in str(KERNEL.refusal(biased))
    with pytest.raises(KernelError, match="biases"):
        KERNEL.load(biased)


@pytest.mark.parametrize("quant_type", TYPES)
@pytest.mark.parametrize("half", [0x7C00, 0xFC00, 0x7E01])
def test_scales_that_are_not_finite_are_refused_by_place(quant_type: Quant, half: int) -> None:
    layer = made_layer((Quant.Q8_0, Quant.Q8_0, quant_type))
    offset = {Quant.Q4_K: 2, Quant.Q5_K: 2, Quant.Q6_K: 208, Quant.Q8_0: 3 * 34}[quant_type]
    at = 5 * row_bytes(quant_type, 256) + offset
    layer.down.data[1, at : at + 2] = (half & 255, half >> 8)
    loaded = KERNEL.load(layer)
    loaded.read_scales([0])
    loaded.compute(GOOD, pairs(0), pairs(0))
    with pytest.raises(KernelError, match=f"local expert 1, down: a {quant_type.name} scale in matrix row 5, block 0"):
        loaded.compute(GOOD, pairs(0, 0), pairs(0, 1))
    with pytest.raises(KernelError, match="infinite or NaN"):
        loaded.read_scales()
    matrix = layer.down.expert(1)
    with pytest.raises(KernelError, match="infinite or NaN"):
        KERNEL.prepare(matrix)


def test_linears_refuse_what_they_cannot_compute() -> None:
    matrix = KERNEL.prepare(WeightMatrix(Quant.Q8_0, 2, 256, made_weights(Quant.Q8_0, 2, 256, 1)))
    assert KERNEL.linear(plain_rows(3, 256, 1), [matrix, matrix])[1].shape == (3, 2)
    with pytest.raises(KernelError, match="512 values; the matrix has 256 columns"):
        KERNEL.linear(plain_rows(1, 512, 1), [matrix])
    with pytest.raises(KernelError, match="inf at 3"):
        KERNEL.linear(np.where(np.arange(256) == 3, np.inf, plain_rows(1, 256, 1)).astype(np.float32), [matrix])
    with pytest.raises(KernelError, match="is F16"):
        KERNEL.prepare(WeightMatrix(Quant.F16, 1, 256, np.zeros(512, np.uint8)))
