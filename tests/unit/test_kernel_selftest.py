"""The self-test and its inputs: made as docs/reference/kx1.md says, equal on every build, able to catch a bad one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quant

from kvasir.errors import KernelError
from kvasir.experts import FloatRows, LayerExperts
from kvasir.kernels import native, selftest
from kvasir.kernels.api import KX1_NAME, KX1_VERSION, EncodedRows, LoadedExperts, Pairs, RowFormat, kernel_fingerprint
from kvasir.kernels.float_kernel import FloatKernel
from kvasir.kernels.oracle.kernel import NumpyKX1Kernel
from kvasir.kernels.oracle.rowops import NumpyRowOps
from kvasir.kernels.oracle.rows import unpack
from kvasir.kernels.rowops import NativeRowOps, RowOps
from kvasir.kernels.selftest_digests import FROZEN_DIGESTS
from kvasir.kernels.selftest_inputs import (
    adversarial_rows,
    legal_packed_rows,
    made_weights,
    plain_rows,
    stream_bytes,
    words,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "kx1.md"


def word(seed: int, i: int) -> int:
    x = (seed + (i + 1) * 0x9E3779B9) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)


def documented_rows(cols: int, seed: int) -> list[list[int]]:
    """The table of docs/reference/kx1.md, word for word."""
    rows: list[list[int]] = [[] for _ in range(17)]
    for i in range(cols):
        v = word(seed, i)
        sg, m, f = v & 0x80000000, v & 0x7FFFFF, (v >> 23) & 255
        starts = i % 256 == 0
        t = 254 if i % 32 == 0 else 2 * ((v >> 8) % 254) - 253
        values = (
            0,
            sg | m,
            0x80800000,
            0x7F7FFFFF,
            0x7F7FFFFF | (i % 2) << 31,
            0x3F800000 if i == cols // 3 else 0,
            0x3F333333 | (i % 2) << 31,
            sg | (127 if f == 255 else f) << 23 | m,
            sg | (1 + (v >> 8) % 254) << 23,
            sg | (0x3FEE2000 if starts else 119 << 23 | m),
            sg | (0x3FEE2001 if starts else 119 << 23 | m),
            sg | (130 - (i // 32) % 8) << 23 | m,
            sg | (200 - 9 * ((i // 256) % 21)) << 23 | m,
            sg | (193 if i < 256 else 127) << 23 | m,
            int(np.float32(t / 2).view(np.uint32)),
            sg | (60 + ((v >> 23) & 7)) << 23 | m,
            sg | (119 + ((v >> 23) & 7)) << 23 | m,
        )
        for row, bits in zip(rows, values, strict=True):
            row.append(bits)
    return rows


@pytest.mark.parametrize("seed", [0, 77, 0xFFFFFFF0])
def test_words_and_bytes_come_from_the_documented_mixer(seed: int) -> None:
    assert words(seed, 50).tolist() == [word(seed, i) for i in range(50)]
    wanted = [word(seed, k // 4) >> 8 * (k % 4) & 255 for k in range(13)]
    assert stream_bytes(seed, 13).tolist() == wanted


@pytest.mark.parametrize(("cols", "seed"), [(512, 1064), (8192, 5)])
def test_adversarial_rows_are_those_of_the_documented_table(cols: int, seed: int) -> None:
    assert adversarial_rows(cols, seed).view(np.uint32).tolist() == documented_rows(cols, seed)


def test_every_input_is_finite_and_legal() -> None:
    assert np.isfinite(adversarial_rows(8192, 3)).all()
    assert np.isfinite(plain_rows(3, 8192, 3)).all()
    for seed in range(20):
        unpack(legal_packed_rows(1024, seed))


def test_extreme_weights_have_the_documented_codes() -> None:
    low = made_weights(Quant.Q6_K, 2, 256, 1, "low").reshape(2, 210)
    high = made_weights(Quant.Q5_K, 2, 256, 1, "high").reshape(2, 176)
    assert (low[:, :192] == 0).all()
    assert (low[:, 192:208] == 0x80).all()
    assert (high[:, 4:] == 0xFF).all()
    v = word(1 + 0x5CA1E000, 3)
    bits = v & 0xBFFF if (v >> 10) & 31 == 31 else v & 0xFFFF
    assert high[1, 2:4].tolist() == [bits & 255, bits >> 8]


def test_the_document_states_the_digest_and_the_fingerprint() -> None:
    kernel = NumpyKX1Kernel()
    digest = selftest.self_test(kernel)
    text = DOCUMENT.read_text(encoding="utf-8")
    assert digest in text
    assert kernel.fingerprint in text
    assert kernel.fingerprint == hashlib.sha256(f"kx1 1 {digest}".encode()).hexdigest()
    assert f"Version **{KX1_VERSION}**" in text


def test_the_frozen_digests_are_of_the_cases_that_run() -> None:
    for name, cases in selftest.CASES.items():
        assert list(FROZEN_DIGESTS[name]) == [case.name for case in cases]


def test_a_fingerprint_depends_on_name_version_and_digest() -> None:
    prints = {kernel_fingerprint(*parts) for parts in (("a", 1, "0"), ("b", 1, "0"), ("a", 2, "0"), ("a", 1, "1"))}
    assert len(prints) == 4
    assert all(len(digits) == 64 for digits in prints)


class FaultyKernel(NumpyKX1Kernel):
    """Flips one bit of one output, or of one packed row."""

    def __init__(self, where: str) -> None:
        self.where = where

    def encode_rows(self, rows: FloatRows) -> EncodedRows:
        packed = super().encode_rows(rows)
        if self.where == "encoded rows":
            packed[16, 5] ^= 1
        return packed

    def load(self, experts: LayerExperts) -> LoadedExperts:  # type: ignore[override]
        loaded = super().load(experts)
        return FaultyExperts(loaded, self.where) if self.where.startswith("outputs") else loaded


class FaultyExperts:
    def __init__(self, loaded: LoadedExperts, where: str) -> None:
        self._loaded, self._where = loaded, where
        self.layer, self.n_expert, self.d_model = loaded.layer, loaded.n_expert, loaded.d_model

    def compute(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> FloatRows:
        out = self._loaded.compute(rows, pair_rows, pair_ids)
        if self._where.endswith("small calls"):
            out.view(np.uint32)[-1, 3] ^= int(len(pair_rows) == 2)
            return out
        wanted_id = 0 if "first" in self._where else 1
        bad = int(np.flatnonzero((pair_ids == wanted_id) & (pair_rows == 16))[0])
        out.view(np.uint32)[bad, 3] ^= 1
        return out


@pytest.mark.parametrize("where", ["encoded rows", "outputs of the first expert", "outputs of the second expert"])
def test_one_wrong_bit_fails_the_self_test_and_is_named(where: str) -> None:
    kernel = FaultyKernel(where)
    with pytest.raises(KernelError, match=f"kx1 failed its self-test: {where}.* of Q4_K Q4_K Q6_K"):
        selftest.self_test(kernel)
    with pytest.raises(KernelError, match="self-test"):
        _ = kernel.fingerprint


def test_a_wrong_bit_in_small_calls_alone_fails_the_self_test() -> None:
    with pytest.raises(KernelError, match="rows of Q4_K Q4_K Q6_K have other bits in a small call"):
        selftest.self_test(FaultyKernel("outputs of small calls"))


def test_a_kernel_without_a_self_test_is_refused() -> None:
    class Unknown(NumpyKX1Kernel):
        name = "other"

    with pytest.raises(KernelError, match="'other' has no self-test"):
        selftest.self_test(Unknown())


def test_each_case_of_kx1_covers_every_type_between_them() -> None:
    types = {quant_type for case in selftest.CASES[KX1_NAME] for quant_type in case.types}
    assert types == {Quant.Q4_K, Quant.Q5_K, Quant.Q6_K, Quant.Q8_0}
    assert all(len(case.rows(RowFormat.KX1)) == 17 for case in selftest.CASES[KX1_NAME])


def test_every_build_of_the_float_kernel_has_one_fingerprint() -> None:
    builds: tuple[RowOps, ...] = (
        NumpyRowOps(),
        *(NativeRowOps(isa, n) for isa in native.load().isa_names for n in (1, 2)),
    )
    prints = {FloatKernel(ops=ops).fingerprint for ops in builds}
    assert len(prints) == 1
    assert NumpyKX1Kernel().fingerprint not in prints
