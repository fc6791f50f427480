"""The benchmarks at the real shape: their model files are what llama.cpp reads too, and their keys are as promised."""

from __future__ import annotations

import numpy as np
import pytest

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from benchmarks.bench_vs_llamacpp import QUICK, _prompts
from benchmarks.shape.generate_decode import decode
from benchmarks.shape.layout import QUICK as QUICK_SHAPE
from benchmarks.shape.layout import RealShape, recipes
from benchmarks.shape.model import model_bytes, write_real_shape
from benchmarks.shape.step_profile import ROWS
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.model_card import ModelCard
from tests.oracles.llama_cpp import LlamaCpp
from tests.unit.test_bench_keys import quick_run

pytestmark = pytest.mark.long


def test_a_made_model_is_the_same_to_llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write_real_shape(tmp_path_factory.mktemp("shape") / "model.gguf", QUICK_SHAPE)
    prompts = _prompts(2, 8)
    with LoadedModel.open(path, n_slot=2, n_ctx=64, n_threads=1) as loaded, LlamaCpp() as llama_cpp:
        ours = decode(loaded, NoWorkers(), prompts, 2)
        llama_cpp.load(path, n_ctx=64)
        theirs = [llama_cpp.logits(prompt)[-1] for prompt in prompts]
    for token_ids, logits in zip(ours.token_ids, theirs, strict=True):
        assert logits[token_ids[0]] > np.sort(logits)[-4]  # among the likeliest: both quantise rows, each in its way


def test_a_made_model_is_the_same_each_time_and_has_its_true_size(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("shape")
    one = write_real_shape(folder / "one.gguf", QUICK_SHAPE)
    other = write_real_shape(folder / "other.gguf", QUICK_SHAPE)
    assert one.read_bytes() == other.read_bytes()
    assert model_bytes(QUICK_SHAPE) < one.stat().st_size < model_bytes(QUICK_SHAPE) + 100_000


def test_the_full_shape_is_the_122b() -> None:
    whole = RealShape(n_layer=48, n_vocab=248_320)
    experts = [recipe for recipe in recipes(whole) if "_exps" in recipe.name]
    assert len(experts) == 3 * 48
    n_weights = sum(int(np.prod(recipe.shape)) for recipe in recipes(whole))
    assert 118e9 < n_weights < 124e9
    assert 0.9 < sum(int(np.prod(recipe.shape)) for recipe in experts) / n_weights < 0.96
    assert QUICK.n_steps.keys() == {1, 8, 32}


def test_the_router_is_skewed(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write_real_shape(tmp_path_factory.mktemp("shape") / "model.gguf", QUICK_SHAPE)
    with GGUFIndex.open(path) as index:
        assert ModelCard.from_index(index).n_expert == QUICK_SHAPE.n_expert
        lengths = np.linalg.norm(index.values("blk.0.ffn_gate_inp.weight"), axis=1)
    assert lengths.max() > 1.4 * lengths.min()


def test_bench_vs_llamacpp() -> None:
    figures = quick_run("bench_vs_llamacpp")
    cases = ("tok_s_1", "tok_s_8", "tok_s_32", "pp64")
    ratios = {f"ratio_{which}{case}" for which in ("", "repacked_") for case in cases}
    other = {"tok_per_cpu_s", "peak_rss_gb", "own_gb", "batch_invariant", "threads", "commit"}
    assert set(figures) == ratios | other
    assert all(figures[key] > 0 for key in ratios)
    assert figures["batch_invariant"] is True


def test_bench_long_context() -> None:
    figures = quick_run("bench_long_context")
    ratios = {"ratio_ctx_short", "ratio_ctx8k", "ratio_attention_ctx8k", "ratio_pp8k"}
    assert set(figures) == ratios | {"step_ms_ctx8k", "pp8k_s", "attention_ms", "state_ms", "n_prompt", "commit"}
    assert all(figures[key] > 0 for key in ratios - {"ratio_attention_ctx8k"})  # a difference, of too few steps here
    assert 0 < figures["state_ms"]["1"] < figures["state_ms"]["512"]
    assert figures["attention_ms"].keys() == {"decode", "rows_128"}
    assert all(list(by_context) == ["512", "1024"] for by_context in figures["attention_ms"].values())


def test_the_profile_of_a_step_has_every_part_and_case() -> None:
    figures = quick_run("shape.step_profile")["step_ms"]
    assert list(figures) == [f"{batch}{way}" for batch in (1, 8, 64) for way in ("", " over the relay")]
    for case, by_part in figures.items():
        assert tuple(by_part) == ROWS
        assert by_part["dense matrices"] > 0
        assert (by_part["routed experts"] > 0) is not case.endswith("relay")


def test_bench_full_shape() -> None:
    figures = quick_run("bench_full_shape")
    assert set(figures) == {
        "open_s", "rss_gb", "own_gb", "model_gb", "first_token_s", "token_s", "finished", "commit"
    }  # fmt: skip
    assert figures["finished"] is True
    assert figures["rss_gb"] >= figures["own_gb"] > 0


def test_bench_threads() -> None:
    figures = quick_run("bench_threads")
    ratios = {f"{name}_{batch}" for name in ("speedup_pool", "speedup_parts", "ratio_parts_pool",
              "ratio_pool_llamacpp") for batch in (2, 8, 64)}  # fmt: skip
    assert set(figures) == ratios | {"tok_s", "threads", "commit"}
    assert all(figures[key] > 0 for key in ratios)
    assert all(set(by_way) == {"one_thread", "pool", "parts", "llamacpp"} for by_way in figures["tok_s"].values())


def test_bench_overhead() -> None:
    figures = quick_run("bench_overhead")
    assert set(figures) == {
        f"overhead_{kind}{batch}" for kind in ("pct_", "cpu_pct_", "sum_pct_", "sum_cpu_pct_") for batch in (1, 8, 64)
    } | {"commit"}  # fmt: skip
    assert all(figures[key] > -100 for key in figures if key != "commit")
