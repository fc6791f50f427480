"""Workers that die or hang while a text is written, as real processes: the text and every logit stay the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.edge_pool import EdgePool
from backbone.engine.swarm.transport import NoWorkers
from backbone.engine.swarm.worker_address import WorkerAddress
from backbone.management.generation import DispatchSettings, Generation, first_difference, generate
from backbone.sampling_params import SamplingParams
from kvasir_site.supervisor.local_workers import LocalWorker
from tests.swarm.swarm import cut, even_parts

MODEL = Path(__file__).resolve().parents[2] / "models" / "kvasir-demo-moe.q4_k_m.gguf"
PARAMS = SamplingParams(temperature=0.8, seed=11, max_tokens=40)
DEADLINE = DispatchSettings(deadline_s=0.5)


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedModel]:
    with LoadedModel.open(MODEL, n_slot=2, n_ctx=128, n_threads=1) as model:
        yield model


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[LocalWorker]]:
    slices = cut(MODEL, even_parts(16, 2), tmp_path)
    started = [LocalWorker(path, n_threads=1, log_path=tmp_path / f"{path.stem}.log") for path in slices]
    try:
        for worker in started:
            worker.wait_ready()
        yield started
    finally:
        for worker in started:
            worker.resume()
            worker.stop()


def write(loaded: LoadedModel, pool: EdgePool | NoWorkers, at_token: Callable[[int], None]) -> Generation:
    prompt = loaded.tokenizer.encode("The old dog was", add_special=True, parse_special=False)
    seen = iter(range(1000))
    return generate(
        loaded, pool, [prompt], PARAMS, settings=DEADLINE, on_text=lambda number, text: at_token(next(seen))
    )


def check(loaded: LoadedModel, workers: list[LocalWorker], number: int) -> Generation:
    """Send signal `number` to the second worker after ten tokens; returns the run, which must equal the one alone."""

    def disturb(token: int) -> None:
        if token == 10:
            os.kill(workers[1].pid, number)

    with EdgePool([WorkerAddress.parse(w.address) for w in workers], loaded.hello()) as pool:
        assert pool.problems == {}
        run = write(loaded, pool, disturb)
    assert first_difference(run, write(loaded, NoWorkers(), lambda token: None)) is None
    assert run.n_output_tokens == 40
    assert run.tally.pairs_by_worker[workers[0].address] > run.tally.pairs_by_worker[workers[1].address] > 0
    assert run.tally.n_fallback > 0
    return run


def test_a_worker_killed_in_mid_generation(loaded: LoadedModel, workers: list[LocalWorker]) -> None:
    check(loaded, workers, signal.SIGKILL)


def test_a_worker_that_hangs_in_mid_generation(loaded: LoadedModel, workers: list[LocalWorker]) -> None:
    run = check(loaded, workers, signal.SIGSTOP)
    late = [reason for reason in run.tally.fallback_by_reason if "no result within" in reason]
    assert late != []


def test_a_worker_that_leaves_in_order(loaded: LoadedModel, workers: list[LocalWorker]) -> None:
    check(loaded, workers, signal.SIGTERM)


def test_a_worker_that_comes_back_is_used_again(loaded: LoadedModel, workers: list[LocalWorker]) -> None:
    with EdgePool([WorkerAddress.parse(w.address) for w in workers], loaded.hello(), jitter=lambda: 0.0) as pool:
        workers[1].stop()
        port = workers[1].address.rpartition(":")[2]
        workers[1].restart(port=int(port))
        workers[1].wait_ready()
        pool.wait_connected(workers[1].address, deadline_s=30.0)
        run = write(loaded, pool, lambda token: None)
    assert run.tally.n_fallback == 0
    assert first_difference(run, write(loaded, NoWorkers(), lambda token: None)) is None
