"""Every build of KX1 must meet the golden vectors of tests/golden/kx1/: numpy, and each native build of this machine.

The vectors and their layout are described in the README beside them. They are read here as any other language
would read them, so a change of the files shows as a failure of all builds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as Quant

from kvasir.errors import KernelError
from kvasir.experts import ExpertStack, FloatRows, LayerExperts, WeightMatrix
from kvasir.kernels import native
from kvasir.kernels.api import KX1_VERSION
from kvasir.kernels.kx1 import KX1Kernel
from kvasir.kernels.oracle.kernel import NumpyKX1Kernel
from kvasir.kernels.oracle.steps import round_output, silu_mul
from kvasir.kernels.oracle.weights import fixed_point
from kvasir.kernels.selftest_inputs import adversarial_rows, made_weights, plain_rows, words

FOLDER = Path(__file__).parents[1] / "golden" / "kx1"
HEADER = json.loads((FOLDER / "vectors.json").read_text())
DATA = (FOLDER / HEADER["file"]).read_bytes()
DTYPES = {"u8": "u1", "u16": "<u2", "u32": "<u4", "i32": "<i4"}

NATIVE_BUILDS = native.load().isa_names  # `make test` has built the library; without it this must fail
BUILDS = ("numpy", *NATIVE_BUILDS)

Kernel = NumpyKX1Kernel | KX1Kernel
Case = dict[str, Any]


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def kernel(build: str) -> Kernel:
    return NumpyKX1Kernel() if build == "numpy" else KX1Kernel(isa=build, n_threads=2)


def cases(kind: str) -> list[Any]:
    found = [pytest.param(case, id=case["name"]) for case in HEADER["cases"] if case["kind"] == kind]
    assert found, kind
    return found


def array(case: Case, key: str) -> npt.NDArray[Any]:
    entry = case["arrays"][key]
    dtype = np.dtype(DTYPES[entry["dtype"]])
    n_values = int(np.prod(entry["shape"]))
    return np.frombuffer(DATA, dtype, n_values, entry["offset"]).reshape(entry["shape"]).copy()


def floats(case: Case, key: str) -> FloatRows:
    return array(case, key).view(np.float32)


def sha256(values: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def same_bits(mine: FloatRows, wanted: FloatRows) -> None:
    bits, golden = mine.view(np.uint32), wanted.view(np.uint32)
    differing = np.argwhere(bits != golden)
    assert len(differing) == 0, f"{len(differing)} of {golden.size} values differ, first at {differing[0].tolist()}"


def rows_named(name: str) -> FloatRows:
    return floats(next(case for case in HEADER["cases"] if case["name"] == name), "rows")


def made_layer(case: Case) -> LayerExperts:
    stacks = []
    for recipe in case["matrices"]:
        quant_type = Quant[recipe["type"]]
        data = made_weights(quant_type, recipe["n_out"], recipe["n_in"], recipe["seed"], recipe["kind"])
        assert sha256(data) == recipe["sha256"]
        stacks.append(ExpertStack(quant_type, recipe["n_out"], recipe["n_in"], data[None]))
    gate, up, down = stacks
    return LayerExperts(0, gate, up, down)


def run_expert(kernel: Kernel, case: Case, packed: npt.NDArray[np.uint8]) -> FloatRows:
    numbers = np.arange(len(packed), dtype=np.int32)
    return kernel.load(made_layer(case)).compute(packed, numbers, np.zeros_like(numbers))


def matmul(kernel: Kernel, matrix: WeightMatrix, *parts: FloatRows) -> list[FloatRows]:
    if isinstance(kernel, NumpyKX1Kernel):
        exact = kernel.prepare(matrix)
        return [kernel.linear(rows, [exact])[0] for rows in parts]
    prepared = kernel.prepare(matrix)
    return [kernel.linear(rows, [prepared])[0] for rows in parts]


def silu_of(build: str) -> Callable[[FloatRows, FloatRows], FloatRows]:
    if build == "numpy":
        return silu_mul
    library = native.load()

    def native_silu(gate: FloatRows, up: FloatRows) -> FloatRows:
        out = np.empty_like(gate)
        isa = library.isa(build)
        library.lib.kv_kx1_silu_mul(isa, gate.ctypes.data, up.ctypes.data, out.ctypes.data, gate.size)
        return out

    return native_silu


def finite(bits: npt.NDArray[np.uint32]) -> FloatRows:
    return np.where((bits >> 23) & 255 == 255, bits & 0xBFFFFFFF, bits).astype(np.uint32).view(np.float32)


# -- the files themselves --------------------------------------------------------------------------------------------


def test_the_vectors_are_those_that_were_frozen() -> None:
    assert (HEADER["specification"], HEADER["version"]) == ("KX1", KX1_VERSION)
    assert (len(DATA), hashlib.sha256(DATA).hexdigest()) == (HEADER["bytes"], HEADER["sha256"])
    assert HEADER["sha256"] == FROZEN_SHA256
    for case in HEADER["cases"]:
        for key, entry in case["arrays"].items():
            assert sha256(array(case, key)) == entry["sha256"], (case["name"], key)


def test_a_scalar_build_is_always_among_the_native_ones() -> None:
    assert "scalar" in NATIVE_BUILDS


@pytest.mark.parametrize("case", cases("words"))
def test_streams_of_words(case: Case) -> None:
    for seed, wanted in zip(array(case, "seeds"), array(case, "words"), strict=True):
        assert words(int(seed), len(wanted)).tolist() == wanted.tolist()


@pytest.mark.parametrize("case", cases("quantise"))
def test_rows_are_made_from_their_recipe(case: Case) -> None:
    cols = case["cols"]
    made = np.concatenate([adversarial_rows(cols, cols), plain_rows(3, cols, cols + 1)])
    same_bits(made, floats(case, "rows"))


# -- parts that only the oracle shows --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("scale"))
def test_scales_become_fixed_point(case: Case) -> None:
    assert fixed_point(array(case, "scales"), case["ew"]).tolist() == array(case, "fixed").tolist()


@pytest.mark.parametrize("case", cases("round"))
def test_outputs_are_rounded(case: Case) -> None:
    low, high = array(case, "acc").astype(np.int64).T
    acc = low | (high << 32)
    same_bits(round_output(acc, array(case, "exponent")).view(np.float32), floats(case, "outputs"))


# -- every build -----------------------------------------------------------------------------------------------------


def test_every_build_has_the_same_fingerprint(kernel: Kernel) -> None:
    assert kernel.fingerprint == FROZEN_FINGERPRINT


@pytest.mark.parametrize("case", cases("quantise"))
def test_rows_are_quantised_and_packed(kernel: Kernel, case: Case) -> None:
    packed = kernel.encode_rows(floats(case, "rows"))
    assert np.array_equal(packed, array(case, "packed"))


@pytest.mark.parametrize("case", cases("refuse"))
def test_forbidden_packed_rows_are_refused(kernel: Kernel, case: Case) -> None:
    quant_type, cols = Quant.Q8_0, case["cols"]
    matrix = ExpertStack(quant_type, 512, cols, made_weights(quant_type, 512, cols, 1)[None])
    loaded = kernel.load(LayerExperts(0, matrix, matrix, matrix))
    for row in array(case, "packed"):
        with pytest.raises(KernelError):
            loaded.compute(row[None], np.zeros(1, np.int32), np.zeros(1, np.int32))


@pytest.mark.parametrize("case", cases("silu"))
def test_silu(build: str, case: Case) -> None:
    same_bits(silu_of(build)(floats(case, "gate"), floats(case, "up")), floats(case, "outputs"))


@pytest.mark.parametrize("case", cases("silu hash"))
def test_silu_of_many(build: str, case: Case) -> None:
    n = case["n"]
    gate, up = finite(words(900, n)), finite(words(901, n))
    gate[n // 2 :] = plain_rows(1, n // 2, 902)[0] * 32
    up[n // 2 :] = plain_rows(1, n // 2, 903)[0]
    assert sha256(silu_of(build)(gate, up)) == case["sha256"]


@pytest.mark.parametrize("case", cases("matmul"))
def test_matmul(kernel: Kernel, case: Case) -> None:
    matrix = WeightMatrix(Quant[case["type"]], case["n_out"], case["n_in"], array(case, "weights"))
    rows, wanted = rows_named(case["rows"]), floats(case, "outputs")
    counts = (len(rows), 1, 2, 3, 5)
    for n, outputs in zip(counts, matmul(kernel, matrix, *(rows[-n:] for n in counts)), strict=True):
        same_bits(outputs, wanted[-n:])


@pytest.mark.parametrize("case", cases("matmul hash"))
def test_matmul_of_the_widest_rows(kernel: Kernel, case: Case) -> None:
    quant_type, n_out, n_in = Quant[case["type"]], case["n_out"], case["n_in"]
    data = made_weights(quant_type, n_out, n_in, case["seed"], case["weights"])
    rows = np.concatenate([adversarial_rows(n_in, n_in), plain_rows(3, n_in, n_in + 1)])
    (outputs,) = matmul(kernel, WeightMatrix(quant_type, n_out, n_in, data), rows)
    assert sha256(outputs) == case["sha256"]


@pytest.mark.parametrize("case", cases("expert"))
def test_experts(kernel: Kernel, case: Case) -> None:
    packed = array(case, "packed")
    rows = rows_named(case["rows"])
    assert np.array_equal(kernel.encode_rows(rows), packed[: len(rows)])
    same_bits(run_expert(kernel, case, packed), floats(case, "outputs"))


@pytest.mark.parametrize("case", cases("expert hash"))
def test_experts_of_full_shape(kernel: Kernel, case: Case) -> None:
    packed = kernel.encode_rows(plain_rows(case["n_rows"], case["d_model"], case["rows_seed"]))
    assert sha256(packed) == case["packed_sha256"]
    assert sha256(run_expert(kernel, case, packed)) == case["sha256"]


FROZEN_SHA256 = "f1fcaef4fcf6f7f1c2ccc8d672676d9d911ec7998d78d76a9f60fa4d55276e0a"
FROZEN_FINGERPRINT = "3e397bc766e40632d732f29ec44fb72343a2433d0a95baf3389c554cc9c7d931"
