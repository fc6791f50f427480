"""The fast dense path: copies where they are used and only there, their error, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quant

from backbone.engine.model.model import Model
from backbone.engine.ops import fast_ops
from backbone.engine.ops.copy_rules import ROWS_TRIED, CopyRule, crossover, measured_rule, multiply
from backbone.engine.ops.fast_ops import FastOps
from backbone.engine.ops.stable_ops import StableOps
from backbone.engine.ops.torch_ops import TorchOps
from backbone.engine.serving.loaded_model import Arithmetic, Dense, LoadedModel, make_ops
from backbone.engine.serving.sum_calibration import sum_scale_of
from backbone.process.served_model import directory_entry, open_model
from backbone.service_settings import ServiceSettings
from kvasir.byte_sizes import format_size
from kvasir.experts import WeightMatrix
from kvasir.gguf.index import GGUFIndex
from kvasir.kernels.kx1 import KX1Kernel
from kvasir.kernels.native import usable_cores
from tests.oracles.kernel_experts import KernelExperts
from tests.oracles.llama_cpp import LlamaCpp
from tests.oracles.model_runs import run_chunks, torch_oracle
from tests.oracles.quantise import quantise
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.oracles.tiny_layout import TinyShape

EXACT, ORACLE = StableOps(n_threads=1), TorchOps(torch.float64)
RULE = CopyRule(torch.bfloat16, 12)


def matrix(quant_type: Quant, n_out: int, n_in: int) -> WeightMatrix:
    values = (np.random.default_rng(3).standard_normal((n_out, n_in)) / n_in**0.5).astype(np.float32)
    return WeightMatrix(quant_type, n_out, n_in, quantise(values, quant_type).reshape(-1))


def rows(n: int, n_in: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(4).standard_normal((n, n_in)).astype(np.float32))


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of small matrices too."""
    monkeypatch.setattr(fast_ops, "LEAST_WEIGHTS", 1)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("quant_type", [Quant.Q4_K, Quant.Q6_K, Quant.Q8_0])
def test_few_rows_have_the_exact_bits_and_many_the_copys(quant_type: Quant) -> None:
    stored, bias, x = matrix(quant_type, 40, 512), rows(1, 40)[0], rows(16, 512)
    ops = FastOps(1, RULE)
    linear = ops.make_linear(stored, bias)
    exact = EXACT.make_linear(stored, bias)
    assert torch.equal(ops.linear(x[:11], linear)[0], EXACT.linear(x[:11], exact)[0])
    many = ops.linear(x, linear)[0]
    assert many.dtype is torch.float32
    assert not torch.equal(many, EXACT.linear(x, exact)[0])
    truth = ORACLE.linear(x.double(), ORACLE.make_linear(stored, bias.double()))[0]
    assert float((many - truth).norm() / truth.norm()) < 6e-3  # three roundings to 8 bits of mantissa


@pytest.mark.usefixtures("any_size")
def test_linears_of_all_kinds_share_a_call() -> None:
    ops, x = FastOps(1, RULE), rows(20, 512)
    kinds = [(Quant.Q4_K, 8), (Quant.F32, 3), (Quant.Q6_K, 5)]
    linears = [ops.make_linear(matrix(kind, n, 512)) for kind, n in kinds]
    together = ops.linear(x, *linears)
    assert [tuple(part.shape) for part in together] == [(20, 8), (20, 3), (20, 5)]
    assert all(torch.equal(part, ops.linear(x, linear)[0]) for part, linear in zip(together, linears, strict=True))
    assert torch.equal(together[1], EXACT.linear(x, EXACT.make_linear(matrix(Quant.F32, 3, 512)))[0])


def test_small_matrices_and_float_ones_are_not_copied() -> None:
    ops = FastOps(1, RULE)
    for stored in (matrix(Quant.Q4_K, 64, 512), matrix(Quant.F32, 64, 512)):
        ops.make_linear(stored)
    assert (ops.copy_bytes, ops.is_batch_stable, ops.name) == (0, True, "fast: no copies")


@pytest.mark.usefixtures("any_size")
def test_copies_are_counted_and_named() -> None:
    ops = FastOps(1, RULE)
    ops.make_linear(matrix(Quant.Q6_K, 5, 512))
    ops.make_linear(matrix(Quant.Q4_K, 40, 512))
    assert ops.copy_bytes == 2 * 45 * 512
    assert not ops.is_batch_stable
    assert ops.name == "fast: Q4_K in bfloat16 from 12 rows, Q6_K in bfloat16 from 12 rows"
    assert EXACT.is_batch_stable and EXACT.name == "kx1"


@pytest.mark.usefixtures("any_size")
def test_a_copy_made_in_parts_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, x = matrix(Quant.Q5_K, 40, 256), rows(13, 256)
    whole = FastOps(1, RULE)
    expected = whole.linear(x, whole.make_linear(stored))[0]
    monkeypatch.setattr(fast_ops, "ROWS_AT_ONCE", 7)
    in_parts = FastOps(1, RULE)
    assert torch.equal(in_parts.linear(x, in_parts.make_linear(stored))[0], expected)


@pytest.mark.parametrize(
    ("copy_s", "expected"),
    [
        ([9.0, 5.0, 1.0], 12),
        ([1.0, 5.0, 1.0], 8),
        ([1.0, 1.0, 10.0], None),  # slower with the most rows
        ([1.0, 8.0, 1.0], 16),  # a gain of less than a tenth is none
        ([9.0, 9.0, 8.0], None),
    ],
)
def test_the_crossover_is_where_the_copy_stays_faster(copy_s: list[float], expected: int | None) -> None:
    assert crossover((8, 12, 16), [8.0, 8.0, 8.0], copy_s) == expected


def test_what_is_measured_decides() -> None:
    weights = rows(64, 256)

    def slow(x: torch.Tensor) -> None:
        for _ in range(300):
            multiply(x, weights)

    rule = measured_rule(256, slow, weights)
    assert rule is not None and rule.from_rows == ROWS_TRIED[0]
    assert measured_rule(256, lambda _x: None, weights) is None


@pytest.mark.usefixtures("any_size")
def test_each_type_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def answer(n_in: int, *_others: object) -> CopyRule | None:
        asked.append(n_in)
        return RULE if n_in == 512 else None

    monkeypatch.setattr(fast_ops, "measured_rule", answer)
    ops = FastOps(1)
    for stored in (matrix(Quant.Q4_K, 8, 512), matrix(Quant.Q4_K, 8, 256), matrix(Quant.Q6_K, 8, 256)):
        ops.make_linear(stored)
    assert asked == [512, 256]
    assert ops.name == "fast: Q4_K in bfloat16 from 12 rows"


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[LlamaCpp]:
    with LlamaCpp() as reference:
        yield reference


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("architecture", ["qwen35moe", "qwen3moe", "glm4moe"])
@pytest.mark.parametrize("quantisation", ["Q4_K", "Q8_0"])
def test_the_error_against_float64_is_below_llama_cpps(
    quantisation: str, architecture: str, llama_cpp: LlamaCpp, tmp_path: Path
) -> None:
    """As `test_model_stable` asks of the exact path, with every row computed by copies."""
    tokens = np.random.default_rng(0).integers(0, 256, 48).tolist()
    shape = TinyShape(n_layer=3, n_expert=4, n_used=4)
    path = write_tiny(tmp_path / "m.gguf", TinyModel(architecture, quantisation, shape=shape))
    with torch_oracle(path, ORACLE) as (model, experts):
        exact = run_chunks(model, experts, tokens, [48])
    with GGUFIndex.open(path) as index:
        ops = FastOps(1, CopyRule(torch.bfloat16, 1))
        fast = Model.load(index, ops, n_slot=1, n_ctx=64)
        kernel_experts = KernelExperts(index, fast.config.moe_layers, KX1Kernel(n_threads=1))
        ours = median_error(run_chunks(fast, kernel_experts, tokens, [48]), exact)
    assert ops.copy_bytes > 0
    llama_cpp.load(path)
    theirs = median_error(torch.from_numpy(llama_cpp.logits(tokens)), exact)
    path.unlink()
    assert ours <= theirs


def median_error(logits: torch.Tensor, exact: torch.Tensor) -> float:
    """Of all tokens: the norm of the difference over the norm."""
    return float(((logits.double() - exact).norm(dim=1) / exact.norm(dim=1)).median())


@pytest.mark.usefixtures("any_size")
def test_the_fingerprint_names_the_copies(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", TinyModel("qwen3moe", "Q4_K", shape=TinyShape(n_layer=2, n_expert=4)))

    def fingerprint(dense: str, fast_rows: int = 0) -> str:
        settings = ServiceSettings(path, "m", n_slot=1, n_ctx=16, n_threads=1, dense=dense, fast_rows=fast_rows)
        with open_model(settings) as loaded:
            return directory_entry(settings, loaded, None, has_chat=False).fingerprint

    fingerprints = [fingerprint("kx1"), fingerprint("fast", 12), fingerprint("fast", 16), fingerprint("float")]
    assert len(set(fingerprints)) == 4
    assert fingerprint("fast", 12) == fingerprints[1]


@pytest.mark.usefixtures("any_size")
def test_a_model_says_what_its_copies_take(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_tiny(tmp_path / "m.gguf", TinyModel("qwen3moe", "Q4_K", shape=TinyShape(n_layer=2, n_expert=4)))
    with (
        caplog.at_level("INFO"),
        LoadedModel.open(path, n_slot=1, n_ctx=16, arithmetic=Arithmetic(Dense.FAST, fast_rows=12)) as loaded,
    ):
        ops = loaded.model.ops
    assert isinstance(ops, FastOps)
    assert f"the copies take {format_size(ops.copy_bytes)}" in caplog.text
    assert torch.get_num_threads() == usable_cores()
    assert isinstance(make_ops(Arithmetic(), 1), StableOps)
    assert torch.get_num_threads() == 1


@pytest.mark.usefixtures("any_size")
def test_the_exact_paths_scale_of_sums_is_never_another_ones(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", TinyModel("qwen3moe", "Q4_K", shape=TinyShape(n_layer=2, n_expert=4)))

    def kept(dense: Dense) -> set[str]:
        with LoadedModel.open(
            path, n_slot=1, n_ctx=64, n_threads=1, arithmetic=Arithmetic(dense, fast_rows=12)
        ) as loaded:
            sum_scale_of(loaded, tmp_path / "sums")
            return {file.stem.removeprefix(loaded.card.fingerprint) for file in (tmp_path / "sums").iterdir()}

    fast = "-fast-Q4_K-in-bfloat16-from-12-rows-Q6_K-in-bfloat16-from-12-rows"
    assert kept(Dense.FAST) == {fast}
    assert kept(Dense.KX1) == {fast, ""}
