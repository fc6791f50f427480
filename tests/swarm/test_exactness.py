"""The promise: placement never changes the answer. Logits are compared to the bit.

For every architecture and quantisation, experts spread over workers behind real TCP give the same logits as the
backbone's process alone: any number of workers, overlapping replicas, any build of the kernel, and whatever a worker
does wrong.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.edge_pool import EdgePool
from backbone.engine.swarm.reply_format import ReplyFormat
from backbone.engine.swarm.transport import NoWorkers
from backbone.engine.swarm.worker_address import WorkerAddress
from backbone.management.generation import DispatchSettings, Generation, first_difference, generate
from backbone.sampling_params import SamplingParams
from kvasir.kernels.api import ExpertKernel
from kvasir.kernels.kx1 import KX1Kernel
from kvasir.kernels.native import NativeLibrary, load
from kvasir.kernels.oracle import NumpyKX1Kernel
from kvasir.wire.frames import ReplyType
from kvasir.worker.serving.holdings import Holdings, open_holdings
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.swarm.swarm import cut, even_parts, holdings_with, lying, serving

ARCHITECTURES = ("qwen3moe", "qwen35moe", "qwen2moe", "olmoe", "glm4moe", "llama")
QUANTISATIONS = ("F32", "Q8_0", "Q4_K")
N_EXPERT = 16
PROMPTS = ([5, 17, 99, 4, 250, 31, 8], [61, 3], [200, 200, 7])
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Tiny model files, each made once."""
    made: dict[tuple[str, str], Path] = {}
    folder = tmp_path_factory.mktemp("models")

    def get(architecture: str, quantisation: str) -> Path:
        key = architecture, quantisation
        if key not in made:
            made[key] = write_tiny(
                folder / f"{architecture}-{quantisation}.gguf", TinyModel(architecture, quantisation)
            )
        return made[key]

    return get


def alone(loaded: LoadedModel, settings: DispatchSettings | None = None) -> Generation:
    return generate(loaded, NoWorkers(), PROMPTS, GREEDY, settings=settings)


def through(
    loaded: LoadedModel, addresses: Sequence[str], settings: DispatchSettings | None = None, **pool: Any
) -> Generation:
    with EdgePool([WorkerAddress.parse(a) for a in addresses], loaded.hello(), **pool) as edges:
        assert edges.problems == {}
        return generate(loaded, edges, PROMPTS, GREEDY, settings=settings)


def opened(paths: Sequence[Path]) -> list[Holdings]:
    return [open_holdings(path, "auto", 1) for path in paths]


@pytest.mark.parametrize("quantisation", QUANTISATIONS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_two_workers_give_the_bits_of_one_process(
    architecture: str, quantisation: str, models: Callable[[str, str], Path], tmp_path: Path
) -> None:
    model = models(architecture, quantisation)
    slices = cut(model, even_parts(N_EXPERT, 2), tmp_path)
    with LoadedModel.open(model, n_slot=4, n_ctx=64, n_threads=1) as loaded, serving(opened(slices)) as addresses:
        sharded = through(loaded, addresses)
        assert first_difference(sharded, alone(loaded)) is None
        assert sharded.tally.n_fallback == 0
        assert set(sharded.tally.pairs_by_worker) == set(addresses)


@pytest.mark.parametrize("n_workers", [1, 3, 16])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_any_number_of_workers(
    architecture: str, n_workers: int, models: Callable[[str, str], Path], tmp_path: Path
) -> None:
    model = models(architecture, "Q4_K")
    slices = cut(model, even_parts(N_EXPERT, n_workers), tmp_path)
    with LoadedModel.open(model, n_slot=4, n_ctx=64, n_threads=1) as loaded, serving(opened(slices)) as addresses:
        sharded = through(loaded, addresses)
        assert first_difference(sharded, alone(loaded)) is None
        assert sharded.tally.n_fallback == 0


def test_overlapping_replicas_and_experts_that_nobody_holds(models: Callable[[str, str], Path], tmp_path: Path) -> None:
    model = models("qwen3moe", "Q4_K")
    slices = cut(model, [(0, 8), (4, 12), (4, 8)], tmp_path)
    with LoadedModel.open(model, n_slot=4, n_ctx=64, n_threads=1) as loaded, serving(opened(slices)) as addresses:
        sharded = through(loaded, addresses)
        assert first_difference(sharded, alone(loaded)) is None
        assert set(sharded.tally.pairs_by_worker) == set(addresses)
        assert set(sharded.tally.fallback_by_reason) == {"no replica"}


def builds(library: NativeLibrary) -> list[ExpertKernel]:
    return [NumpyKX1Kernel(), *(KX1Kernel(isa, n_threads=1) for isa in library.isa_names)]


def test_workers_on_every_build_of_the_kernel(models: Callable[[str, str], Path], tmp_path: Path) -> None:
    model = models("qwen3moe", "Q4_K")
    kernels = builds(load())
    assert len(kernels) >= 2
    slices = cut(model, even_parts(N_EXPERT, len(kernels)), tmp_path)
    held = [holdings_with(path, kernel) for path, kernel in zip(slices, kernels, strict=True)]
    with LoadedModel.open(model, n_slot=4, n_ctx=64, n_threads=1) as loaded, serving(held) as addresses:
        sharded = through(loaded, addresses)
        assert first_difference(sharded, alone(loaded)) is None
        assert set(sharded.tally.pairs_by_worker) == set(addresses)
        assert sharded.tally.n_fallback == 0


def not_a_number(outputs: np.ndarray) -> np.ndarray:
    spoilt = outputs.copy()
    spoilt[-1, 3] = np.nan
    return spoilt


def too_few(outputs: np.ndarray) -> np.ndarray:
    return outputs[:-1]


def broken(outputs: np.ndarray) -> np.ndarray:
    raise RuntimeError("this worker's memory is broken")


@pytest.mark.parametrize("misbehaviour", [not_a_number, too_few, broken])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_worker_that_answers_garbage_changes_nothing(
    architecture: str,
    misbehaviour: Callable[[np.ndarray], np.ndarray],
    models: Callable[[str, str], Path],
    tmp_path: Path,
) -> None:
    model = models(architecture, "Q4_K")
    honest, other = opened(cut(model, even_parts(N_EXPERT, 2), tmp_path))
    with (
        LoadedModel.open(model, n_slot=4, n_ctx=64, n_threads=1) as loaded,
        serving([honest, lying(other, misbehaviour)]) as addresses,
    ):
        sharded = through(loaded, addresses)
        assert first_difference(sharded, alone(loaded)) is None
        assert sharded.tally.pairs_by_worker[addresses[0]] > 0
        assert sharded.tally.pairs_by_worker[addresses[1]] == 0
        assert sharded.tally.n_fallback > 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_worker_that_stalls_in_mid_generation_changes_nothing(
    architecture: str, models: Callable[[str, str], Path], tmp_path: Path
) -> None:
    model = models(architecture, "Q4_K")
    honest, other = opened(cut(model, even_parts(N_EXPERT, 2), tmp_path))
    released = threading.Event()
    n_answers = itertools.count()

    def stall(outputs: np.ndarray) -> np.ndarray:
        if next(n_answers) >= 3:
            released.wait(30)
        return outputs

    with (
        LoadedModel.open(model, n_slot=4, n_ctx=64, n_threads=1) as loaded,
        serving([honest, lying(other, stall)]) as addresses,
    ):
        try:
            sharded = through(loaded, addresses, DispatchSettings(deadline_s=0.5))
        finally:
            released.set()
        assert first_difference(sharded, alone(loaded)) is None
        assert sharded.tally.pairs_by_worker[addresses[1]] > 0
        assert any("no result within" in reason for reason in sharded.tally.fallback_by_reason)


def test_replies_in_half_precision_are_rounded_alike_everywhere(
    models: Callable[[str, str], Path], tmp_path: Path
) -> None:
    model = models("qwen3moe", "Q4_K")
    slices = cut(model, [(0, 6), (6, 11)], tmp_path)
    half = DispatchSettings(reply_format=ReplyFormat.F16)
    with LoadedModel.open(model, n_slot=4, n_ctx=64, n_threads=1) as loaded, serving(opened(slices)) as addresses:
        rounded_alone = alone(loaded, half)
        assert first_difference(through(loaded, addresses, half, reply=ReplyType.F16), rounded_alone) is None
        assert first_difference(through(loaded, addresses, half, reply=ReplyType.F32), rounded_alone) is None
        assert first_difference(alone(loaded), rounded_alone) is not None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_request_among_others_equals_itself_alone(
    architecture: str, models: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """In decode and in any chunking of the prompt: rows of a step are cut at 4, so prompts run in pieces."""
    with LoadedModel.open(models(architecture, "Q4_K"), n_slot=4, n_ctx=64, n_threads=2) as loaded:
        together = generate(loaded, NoWorkers(), PROMPTS, GREEDY, max_rows=4)
        for number, prompt in enumerate(PROMPTS):
            single = generate(loaded, NoWorkers(), [prompt], GREEDY)
            assert single.output_ids == [together.output_ids[number]]
            assert single.logit_digests == [together.logit_digests[number]]
