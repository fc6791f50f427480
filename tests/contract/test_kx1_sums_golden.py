"""Step 7 of KX1 must meet the golden vectors of tests/golden/kx1_sums/, in C and in numpy."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvasir.errors import KernelError
from kvasir.kernels import native
from kvasir.kernels.sums import pack_sums, sum_outputs, sums_to_float, unpack_sums

FOLDER = Path(__file__).parents[1] / "golden" / "kx1_sums"
HEADER = json.loads((FOLDER / "vectors.json").read_text())
DATA = (FOLDER / HEADER["file"]).read_bytes()
DTYPES = {"u8": "u1", "u32": "<u4", "i32": "<i4"}

Case = dict[str, Any]


@pytest.fixture(params=["C", "numpy"], autouse=True)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    assert native.available()
    if request.param == "numpy":
        monkeypatch.setattr(native, "available", lambda: False)
    return str(request.param)


def cases(kind: str) -> list[Any]:
    found = [pytest.param(case, id=case["name"]) for case in HEADER["cases"] if case["kind"] == kind]
    assert found, kind
    return found


def array(case: Case, key: str) -> npt.NDArray[Any]:
    entry = case["arrays"][key]
    n = int(np.prod(entry["shape"]))
    values = np.frombuffer(DATA, DTYPES[entry["dtype"]], n, entry["offset"]).reshape(entry["shape"])
    assert hashlib.sha256(values.tobytes()).hexdigest() == entry["sha256"]
    return values


def test_the_files_are_those_of_version_1() -> None:
    assert (HEADER["specification"], HEADER["version"], HEADER["bytes"]) == ("KX1 sums", 1, len(DATA))
    assert hashlib.sha256(DATA).hexdigest() == HEADER["sha256"]


@pytest.mark.parametrize("case", cases("sums"))
def test_sums(case: Case) -> None:
    outputs, weights = array(case, "outputs").view(np.float32), array(case, "weights").view(np.float32)
    exponents = array(case, "exponents")
    sums = sum_outputs(outputs, weights, array(case, "pair_rows"), exponents)
    assert np.array_equal(sums, array(case, "sums"))
    assert np.array_equal(pack_sums(sums), array(case, "packed"))
    assert np.array_equal(sums_to_float(sums, exponents).view(np.uint32), array(case, "values"))


@pytest.mark.parametrize("case", [*cases("packed"), *cases("sums")])
def test_packed(case: Case) -> None:
    sums = unpack_sums(array(case, "packed"), case["n_rows"], case["d"])
    assert np.array_equal(sums, array(case, "sums"))
    assert np.array_equal(pack_sums(sums), array(case, "packed"))
    assert np.array_equal(sums_to_float(sums, array(case, "exponents")).view(np.uint32), array(case, "values"))


@pytest.mark.parametrize("case", cases("refuse"))
def test_refused(case: Case) -> None:
    with pytest.raises(KernelError, match="packed sums"):
        unpack_sums(array(case, "packed"), case["n_rows"], case["d"])
