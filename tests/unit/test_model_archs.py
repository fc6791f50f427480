"""Every architecture against llama.cpp, the independent truth, on tiny random files.

A quantised file is compared with llama.cpp on its dequantised twin: on the quantised one llama.cpp rounds the
activations too, and then differs from itself by more than any mistake that is looked for here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from backbone.engine.ops.torch_ops import TorchOps
from tests.oracles.llama_cpp import LlamaCpp, LlamaCppError
from tests.oracles.model_runs import greedy, run_chunks, torch_oracle
from tests.oracles.tiny_gguf import TinyModel, write_tiny, write_tiny_pair
from tests.oracles.tiny_layout import ARCHITECTURES, TinyShape

TOLERANCE = 2e-5  # logits have a deviation of about 1
TOKENS = np.random.default_rng(7).integers(0, 256, 32).tolist()
N_GREEDY = 8


@dataclass(frozen=True, slots=True)
class Variant:
    """A file beside the plain ones."""

    name: str
    model: TinyModel


VARIANTS = [
    Variant(
        "fused gate and up",
        TinyModel("qwen35moe", "Q4_K", is_gate_up_fused=True, shape=TinyShape(n_layer=2, n_expert=8)),
    ),
    Variant("split file", TinyModel("qwen3moe", "Q8_0", split_tensors=9, shape=TinyShape(n_layer=2, n_expert=8))),
    Variant("embedding as head", TinyModel("qwen3moe", "Q5_K", is_tied=True, shape=TinyShape(n_layer=2, n_expert=8))),
    Variant("bf16", TinyModel("olmoe", "BF16", shape=TinyShape(n_layer=2, n_expert=8))),
    Variant("f16", TinyModel("llama", "F16", shape=TinyShape(n_layer=2, n_expert=8))),
    Variant("glm4moe with MTP", TinyModel("glm4moe", shape=TinyShape(n_layer=2, n_expert=8, n_mtp_layer=1))),
    Variant("qwen35moe with MTP", TinyModel("qwen35moe", shape=TinyShape(n_layer=2, n_expert=8, n_mtp_layer=1))),
    Variant("expert groups", TinyModel("glm4moe", shape=TinyShape(n_layer=3, n_expert_group=4, n_expert_group_used=2))),
    Variant(
        "softmax scores",
        TinyModel("glm4moe", shape=TinyShape(n_layer=2, n_expert=8), metadata={"expert_gating_func": 1}),
    ),
    Variant(
        "weights not normalised",
        TinyModel("glm4moe", shape=TinyShape(n_layer=2, n_expert=8), metadata={"expert_weights_norm": False}),
    ),
    Variant(
        "attention narrower",
        TinyModel("qwen3moe", shape=TinyShape(n_layer=2, n_expert=8, n_head=6, n_kv_head=3, d_head=32)),
    ),
    Variant(
        "one key head", TinyModel("qwen2moe", shape=TinyShape(n_layer=2, n_expert=8, n_head=8, n_kv_head=1, d_head=32))
    ),
]


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[LlamaCpp]:
    with LlamaCpp() as reference:
        yield reference


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Emptied at once: these files are large and pytest keeps its directories for three runs."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def check_against(llama_cpp: LlamaCpp, path: Path, reference_path: Path) -> None:
    llama_cpp.load(reference_path)
    expected = torch.from_numpy(llama_cpp.logits(TOKENS))
    assert 0.5 < float(expected.std()) < 2.0
    with torch_oracle(path, TorchOps(torch.float32)) as (model, experts):
        logits = run_chunks(model, experts, TOKENS, [len(TOKENS)])
        assert float((logits - expected).abs().max()) <= TOLERANCE
        continuation = greedy(model, experts, TOKENS[:12], N_GREEDY)
    assert continuation == llama_cpp.greedy([TOKENS[:12]], N_GREEDY).token_ids[0]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_float_file_gives_llama_cpps_logits(architecture: str, llama_cpp: LlamaCpp, directory: Path) -> None:
    path = write_tiny(directory / "m.gguf", TinyModel(architecture, shape=TinyShape(n_expert=8)))
    check_against(llama_cpp, path, path)


@pytest.mark.parametrize("quantisation", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_quantised_file_gives_the_logits_of_its_dequantised_twin(
    architecture: str, quantisation: str, llama_cpp: LlamaCpp, directory: Path
) -> None:
    model = TinyModel(architecture, quantisation, shape=TinyShape(n_layer=3, n_expert=8))
    path, twin = write_tiny_pair(directory / "m.gguf", directory / "twin.gguf", model)
    check_against(llama_cpp, path, twin)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_variant_gives_llama_cpps_logits(variant: Variant, llama_cpp: LlamaCpp, directory: Path) -> None:
    path, twin = write_tiny_pair(directory / "m.gguf", directory / "twin.gguf", variant.model)
    check_against(llama_cpp, path, twin)


def test_another_seed_is_another_model(llama_cpp: LlamaCpp, directory: Path) -> None:
    """The comparison can fail: other weights give logits far outside the tolerance."""
    shape = TinyShape(n_layer=1, n_expert=4)
    path = write_tiny(directory / "m.gguf", TinyModel("qwen3moe", shape=shape))
    other = write_tiny(directory / "other.gguf", TinyModel("qwen3moe", shape=shape, seed=1))
    with pytest.raises(AssertionError):
        check_against(llama_cpp, path, other)


def test_a_file_that_llama_cpp_refuses_is_an_error(llama_cpp: LlamaCpp, directory: Path) -> None:
    (directory / "bad.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(LlamaCppError, match=r"bad\.gguf"):
        llama_cpp.load(directory / "bad.gguf")
