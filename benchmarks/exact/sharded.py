"""Check whether generation over worker processes gives the bits of one process. `bench_exact` and `bench_generate` use
it.

Two worker processes with half of each layer's experts each, over loopback TCP; every logit is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.edge_pool import EdgePool, WorkerAddress
from backbone.engine.swarm.transport import NoWorkers
from backbone.management.generation import first_difference, generate
from backbone.sampling_params import SamplingParams
from kvasir.experts import ExpertRange
from kvasir.slicing.slices import plan_slice, write_slice
from kvasir_site.supervisor.local_workers import LocalWorkers

PROMPTS = ([5, 17, 99, 4, 250, 31, 8], [61, 3], [200, 200, 7])
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


def cut_in_half(loaded: LoadedModel, folder: Path) -> list[Path]:
    """Two slices: the first and the second half of the experts of every MoE layer."""
    card, paths = loaded.card, []
    middle = card.n_expert // 2
    for number, (start, stop) in enumerate([(0, middle), (middle, card.n_expert)]):
        path = folder / f"half-{number}.gguf"
        ranges = [ExpertRange(layer, start, stop) for layer in card.moe_layers]
        write_slice(plan_slice(loaded.index, card, ranges), path)
        paths.append(path)
    return paths


@contextmanager
def two_workers(loaded: LoadedModel, folder: Path, n_threads: int) -> Iterator[EdgePool]:
    """Edges to two worker processes that hold all experts between them. Raises RuntimeError when one is missing."""
    with (
        LocalWorkers(cut_in_half(loaded, folder), folder, n_threads=n_threads) as workers,
        EdgePool([WorkerAddress.parse(address) for address in workers.addresses], loaded.hello()) as edges,
    ):
        if edges.problems:
            raise RuntimeError(f"not every worker is connected: {edges.problems}")
        yield edges


def is_sharded_identical(path: Path, folder: Path) -> bool:
    """Return whether every token and every logit is equal, with every routed pair computed by the workers."""
    folder.mkdir()
    with LoadedModel.open(path, n_slot=len(PROMPTS), n_ctx=64) as loaded:
        alone = generate(loaded, NoWorkers(), PROMPTS, GREEDY)
        with two_workers(loaded, folder, n_threads=1) as edges:
            sharded = generate(loaded, edges, PROMPTS, GREEDY)
    return first_difference(sharded, alone) is None and sharded.tally.n_fallback == 0
