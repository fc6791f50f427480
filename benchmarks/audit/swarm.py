"""The demo model over two workers, one of which lies in a share of its answers: what reaches a text, what it costs.

For lies the workers are servers in this process behind real TCP; for the cost they are processes of their own, so that
this process's CPU time is the backbone's alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.edge_pool import EdgePool, WorkerAddress
from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.transport import NoWorkers, Transport
from backbone.engine.trust.book import Forgetful
from backbone.engine.trust.guard import Lie, WorkGuard
from backbone.engine.trust.standing import TrustPolicy, TrustState
from backbone.management.generation import Generation, generate
from backbone.sampling_params import SamplingParams
from kvasir.kernels.registry import kernel_named
from kvasir.worker.serving.holdings import open_holdings
from kvasir_site.supervisor.local_workers import LocalWorker
from tests.swarm.liars import Sometimes
from tests.swarm.swarm import cut, lying, serving

BEGINNINGS = ("The old dog was", "Once upon a time", "A little girl", "In the garden", "One day, a bird", "Tom and his")
N_TOKENS = 24
PARAMS = SamplingParams(temperature=0.8, seed=7, max_tokens=N_TOKENS)
KEY = bytes(range(32))  # fixed, so that a run can be repeated; a service draws its own


@dataclass(frozen=True, slots=True)
class LyingRun:
    """One run with a liar. `affected` are the requests of which a logit differs from the in-process run's."""

    n_wrong_tokens: int
    affected: frozenset[str]
    flagged: frozenset[str]
    n_answers: int  # of the liar
    n_lies: int
    is_caught: bool
    detected_after: int | None  # replies of the liar until its quarantine, those in flight included

    @property
    def are_all_flagged(self) -> bool | None:
        """Return whether every affected request is flagged; None while the liar is not caught."""
        return self.affected <= self.flagged if self.is_caught else None


class Known(Forgetful):
    """A keeper that knows every worker in the same state."""

    def __init__(self, state: TrustState) -> None:
        self._state = state

    def load(self, worker_id: str) -> TrustState:
        """The state."""
        return self._state


def open_demo(model: Path, n_slot: int) -> LoadedModel:
    """The model with one thread for everything, so that a thread's CPU time is what it computed."""
    loaded = LoadedModel.open(model, n_slot=n_slot, n_ctx=128, n_threads=1)
    name = loaded.store.kernel.name
    return replace(loaded, store=ExpertStore(loaded.index, loaded.card, kernel_named(name, 1)))


def prompts_of(loaded: LoadedModel, n_prompts: int) -> list[list[int]]:
    """Beginnings of stories, by turns; each request has random draws of its own."""
    encoded = [loaded.tokenizer.encode(text, add_special=True, parse_special=False) for text in BEGINNINGS]
    return [list(encoded[number % len(encoded)]) for number in range(n_prompts)]


def write_alone(loaded: LoadedModel, n_prompts: int) -> Generation:
    """The texts of one process."""
    return generate(loaded, NoWorkers(), prompts_of(loaded, n_prompts), PARAMS)


def run_with_liar(
    loaded: LoadedModel,
    alone: Generation,
    slices: list[Path],
    lie_share: float,
    policy: TrustPolicy,
    *,
    n_prompts: int,
    seed: int,
    is_strict: bool = False,
) -> LyingRun:
    """Generate with a liar that was just admitted; its lies begin after the entry test."""
    answer = Sometimes(lie_share, seed, n_honest=len(loaded.card.moe_layers))
    caught_at: list[tuple[Lie, int]] = []
    holdings = [open_holdings(slices[0], "auto", 1), lying(open_holdings(slices[1], "auto", 1), answer)]
    with serving(holdings) as addresses, _edges(loaded, addresses) as edges:
        guard = WorkGuard(
            loaded.store,
            edges,
            key=KEY,
            policy=policy,
            is_strict=is_strict,
            on_lie=lambda lie: caught_at.append((lie, answer.n_answers)),
        )
        run = _generate(loaded, edges, guard, n_prompts)
    affected = frozenset(str(n) for n, digests in enumerate(run.logit_digests) if digests != alone.logit_digests[n])
    flagged = frozenset(request for lie, _ in caught_at for request in lie.flagged.request_ids)
    detected = caught_at[0][1] - len(loaded.card.moe_layers) if caught_at else None
    return LyingRun(
        _wrong_tokens(run, alone), affected, flagged, answer.n_answers, answer.n_lies, bool(caught_at), detected
    )


def cost_pct(loaded: LoadedModel, addresses: list[str], *, n_prompts: int, is_strict: bool) -> float:
    """CPU time of recomputing, per cent of all other CPU time of the backbone; honest workers that are long proven."""
    with _edges(loaded, addresses) as edges:
        keeper = Known(TrustState(verified=10**9))
        guard = WorkGuard(loaded.store, edges, key=KEY, is_strict=is_strict, keeper=keeper)
        guard.usable(edges.live())
        guard.settle()
        before, entry = time.process_time(), guard.counters.check_cpu_s
        _generate(loaded, edges, guard, n_prompts)
        spent, checks = time.process_time() - before, guard.counters.check_cpu_s - entry
    return 100.0 * checks / (spent - checks)


@contextmanager
def worker_processes(slices: list[Path], folder: Path) -> Iterator[list[str]]:
    """Honest workers as processes of their own; yields their addresses."""
    with ExitStack() as stack:
        workers = []
        for path in slices:
            workers.append(LocalWorker(path, n_threads=1, log_path=folder / f"{path.stem}.log"))
            stack.callback(workers[-1].stop)
        yield [worker.wait_ready() for worker in workers]


@contextmanager
def _edges(loaded: LoadedModel, addresses: list[str]) -> Iterator[EdgePool]:
    with EdgePool([WorkerAddress.parse(address) for address in addresses], loaded.hello()) as edges:
        yield edges


def _generate(loaded: LoadedModel, edges: EdgePool, guard: WorkGuard, n_prompts: int) -> Generation:
    transport: Transport = edges
    try:
        guard.usable(edges.live())
        guard.settle()
        run = generate(loaded, transport, prompts_of(loaded, n_prompts), PARAMS, guard=guard)
        guard.settle()
        return run
    finally:
        guard.close()


def _wrong_tokens(run: Generation, alone: Generation) -> int:
    """Tokens that differ from the in-process run's, position by position."""
    wrong = 0
    for ids, right in zip(run.output_ids, alone.output_ids, strict=False):
        wrong += sum(a != b for a, b in zip(ids, right, strict=False)) + abs(len(ids) - len(right))
    return wrong


def cut_halves(model: Path, folder: Path, n_expert: int) -> list[Path]:
    """Two slices that hold one half of each layer's experts."""
    return cut(model, [(0, n_expert // 2), (n_expert // 2, n_expert)], folder)
