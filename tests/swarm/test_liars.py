"""Workers that lie, over real TCP: each is caught as stated, and no text is wrong that must not be.

An unproven worker's lies never reach a text, nor does anybody's in strict mode. In default mode a proven worker's lie
may, and then every request that it touched is flagged. Silence and lateness never cost trust.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.edge_pool import EdgePool
from backbone.engine.swarm.transport import NoWorkers
from backbone.engine.swarm.worker_address import WorkerAddress
from backbone.engine.trust.book import Forgetful
from backbone.engine.trust.entry_tests import WorkerAccess
from backbone.engine.trust.guard import Lie, WorkGuard
from backbone.engine.trust.standing import TrustPolicy, TrustState
from backbone.management.generation import DispatchSettings, Generation, first_difference, generate
from backbone.sampling_params import SamplingParams
from kvasir.worker.serving.holdings import Holdings, open_holdings
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.swarm.liars import Answer, EveryNth, NotANumber, Replaying, Silent
from tests.swarm.swarm import cut, lying, serving

PROMPTS = ([5, 17, 99, 4, 250, 31, 8], [61, 3], [200, 200, 7])
GREEDY = SamplingParams(temperature=0.0, max_tokens=16)
KEY = bytes(range(32))
N_ENTRY_ANSWERS = 8  # at most: one question a layer
ALL_UNPROVEN = TrustPolicy(proven_after=10**9)
CHECKED_AFTER_USE = TrustPolicy(proven_after=0, first_share=1.0, least_share=1.0)


@dataclass(frozen=True)
class Swarm:
    """A backbone with two workers: the honest one, and the one that misbehaves. Both hold all experts, or halves."""

    loaded: LoadedModel
    edges: EdgePool
    guard: WorkGuard
    honest: str
    liar: str
    lies: list[Lie]

    def write(self, deadline_s: float = 10.0, strict: tuple[int, ...] = ()) -> Generation:
        settings = DispatchSettings(deadline_s=deadline_s)
        run = generate(self.loaded, self.edges, PROMPTS, GREEDY, settings=settings, guard=self.guard, strict=strict)
        self.guard.settle()
        return run

    def state(self) -> TrustState:
        return self.guard.book.state(self.liar)

    def verified(self, worker_id: str) -> int:
        return sum(r.row_experts for r in self.guard.receipts.drain() if r.verified and r.node_id == worker_id)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "m.gguf", TinyModel("qwen3moe", "Q4_K"))


@pytest.fixture(scope="module")
def loaded(model: Path) -> Iterator[LoadedModel]:
    with LoadedModel.open(model, n_slot=4, n_ctx=64, n_threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def alone(loaded: LoadedModel) -> Generation:
    return generate(loaded, NoWorkers(), PROMPTS, GREEDY)


@contextmanager
def swarm(
    loaded: LoadedModel,
    paths: list[Path],
    misbehaving: Holdings,
    policy: TrustPolicy,
    *,
    is_strict: bool = False,
    honest: Holdings | None = None,
) -> Iterator[Swarm]:
    honest = honest or open_holdings(paths[0], "auto", 1)
    lies: list[Lie] = []
    with ExitStack() as stack:
        addresses = stack.enter_context(serving([honest, misbehaving]))
        edges = stack.enter_context(EdgePool([WorkerAddress.parse(a) for a in addresses], loaded.hello()))
        assert edges.problems == {}
        guard = WorkGuard(
            loaded.store, WorkerAccess(edges), key=KEY, policy=policy, is_strict=is_strict, on_lie=lies.append
        )
        stack.callback(guard.close)
        guard.usable(edges.live())
        guard.settle()
        yield Swarm(loaded, edges, guard, addresses[0], addresses[1], lies)


@contextmanager
def halves(
    loaded: LoadedModel, model: Path, folder: Path, answer: Answer, policy: TrustPolicy, *, is_strict: bool = False
) -> Iterator[Swarm]:
    """Each worker holds one half, so that the liar is asked in every layer."""
    paths = cut(model, [(0, 8), (8, 16)], folder)
    with swarm(
        loaded, paths, lying(open_holdings(paths[1], "auto", 1), answer), policy, is_strict=is_strict
    ) as running:
        yield running


LIARS: dict[str, Callable[[], Answer]] = {
    "one in a hundred": lambda: EveryNth(100, first=20),
    "replays": lambda: Replaying(N_ENTRY_ANSWERS + 4),
    "not a number": lambda: NotANumber(N_ENTRY_ANSWERS + 4),
}


@pytest.mark.parametrize("kind", LIARS)
@pytest.mark.parametrize(
    ("policy", "is_strict"), [(ALL_UNPROVEN, False), (CHECKED_AFTER_USE, True)], ids=["unproven", "strict"]
)
def test_no_lie_of_an_unproven_worker_or_in_strict_mode_reaches_a_text(
    kind: str,
    policy: TrustPolicy,
    is_strict: bool,
    loaded: LoadedModel,
    model: Path,
    alone: Generation,
    tmp_path: Path,
) -> None:
    with halves(loaded, model, tmp_path, LIARS[kind](), policy, is_strict=is_strict) as running:
        run = running.write()
        assert first_difference(run, alone) is None
        (lie,) = running.lies
        assert (lie.evidence.worker_id, lie.evidence.found_by) == (running.liar, "confirmation")
        assert lie.flagged.request_ids == ()
        assert running.state() == TrustState(failures=1, quarantined=True, evidence_id=lie.evidence.evidence_id)
        assert running.liar not in running.guard.usable(running.edges.live())
        assert running.guard.book.state(running.honest).verified > 0
        paid, asked = running.verified(running.liar), run.tally.pairs_by_worker[running.liar]
        assert paid == asked  # what was right before the lie, and nothing since
        again = running.write()
        assert first_difference(again, alone) is None
        assert again.tally.pairs_by_worker[running.liar] == 0


def test_a_proven_workers_lie_flags_every_request_that_it_reached(
    loaded: LoadedModel, model: Path, alone: Generation, tmp_path: Path
) -> None:
    answer = EveryNth(100, first=20)
    with halves(loaded, model, tmp_path, answer, CHECKED_AFTER_USE) as running:
        run = running.write()
        (lie,) = running.lies
        assert lie.evidence.found_by == "audit"
        affected = {str(n) for n in range(len(PROMPTS)) if run.logit_digests[n] != alone.logit_digests[n]}
        assert affected  # the lie did reach texts: there is something to flag
        assert affected <= set(lie.flagged.request_ids)
        assert lie.flagged.is_complete
        for request_id in affected:
            assert running.guard.exposures.evidence_of(request_id) == (lie.evidence.evidence_id,)
        assert lie.n_withheld > 0
        unpaid = [r for r in running.guard.receipts.drain() if not r.verified]
        assert {(r.node_id, r.reason) for r in unpaid} == {
            (running.liar, f"a wrong answer was proven (evidence {lie.evidence.evidence_id})")
        }
        # right answers that were under way when the lie was found are unpaid too, on top of what was withheld then
        assert sum(r.row_experts for r in unpaid) >= lie.n_withheld
        assert first_difference(running.write(), alone) is None  # and then no more


def test_a_strict_request_beside_others_is_never_wrong(
    loaded: LoadedModel, model: Path, alone: Generation, tmp_path: Path
) -> None:
    never_checked = TrustPolicy(proven_after=0, first_share=0.0, least_share=0.0)
    with halves(loaded, model, tmp_path, EveryNth(2, first=20), never_checked) as running:
        run = running.write(strict=(1,))
        assert run.logit_digests[1] == alone.logit_digests[1]
        assert [lie.evidence.found_by for lie in running.lies] == ["confirmation"]
        assert "1" not in running.lies[0].flagged.request_ids


@pytest.mark.parametrize("kind", ["replays", "not a number"])
def test_a_replayed_or_spoilt_answer_of_a_proven_worker_never_reaches_a_text(
    kind: str, loaded: LoadedModel, model: Path, alone: Generation, tmp_path: Path
) -> None:
    """Nothing is sampled: an old answer, and what is not finite, are confirmed before use all the same."""
    never_checked = TrustPolicy(proven_after=0, first_share=0.0, least_share=0.0)
    with halves(loaded, model, tmp_path, LIARS[kind](), never_checked) as running:
        assert first_difference(running.write(), alone) is None
        assert [lie.evidence.found_by for lie in running.lies] == ["confirmation"]
        assert running.state().quarantined
        assert running.verified(running.liar) == 0  # nothing vouches for what it did before


def test_a_worker_without_its_experts_never_serves(
    loaded: LoadedModel, model: Path, alone: Generation, tmp_path: Path
) -> None:
    paths = cut(model, [(0, 8), (8, 16)], tmp_path)
    claims, has = open_holdings(paths[1], "auto", 1), open_holdings(paths[0], "auto", 1)
    with swarm(loaded, paths, replace(claims, layers=has.layers), CHECKED_AFTER_USE) as running:
        run = running.write()
        assert first_difference(run, alone) is None
        assert [lie.evidence.found_by for lie in running.lies] == ["entry test"]
        assert run.tally.pairs_by_worker[running.liar] == 0
        assert running.verified(running.liar) == 0


@pytest.mark.parametrize("late_s", [None, 0.3], ids=["silent", "late"])
def test_silence_and_lateness_cost_work_but_never_trust(
    late_s: float | None, loaded: LoadedModel, model: Path, alone: Generation, tmp_path: Path
) -> None:
    answer = Silent(N_ENTRY_ANSWERS + 4, late_s)
    with halves(loaded, model, tmp_path, answer, ALL_UNPROVEN) as running:
        run = running.write(deadline_s=0.1)
        assert first_difference(run, alone) is None
        assert run.tally.n_fallback > 0
        assert running.lies == []
        assert running.state().failures == 0
        assert running.state().verified > 0
        assert running.verified(running.liar) == run.tally.pairs_by_worker[running.liar]  # late answers are not paid
        answer.released.set()


def test_a_late_batch_is_hedged_to_the_other_replica(
    loaded: LoadedModel, model: Path, alone: Generation, tmp_path: Path
) -> None:
    """The worker that will be silent is the faster one in its entry test, and so is asked first."""
    n_questions = len(loaded.card.moe_layers)
    silent, slow = Silent(n_questions), Silent(0, late_s=0.02)
    paths = cut(model, [(0, 16), (0, 16)], tmp_path)
    first, second = (open_holdings(path, "auto", 1) for path in paths)
    with swarm(loaded, paths, lying(second, silent), ALL_UNPROVEN, honest=lying(first, slow)) as running:
        run = running.write(deadline_s=1.0)
        assert first_difference(run, alone) is None
        assert run.hedges.n_late > 0
        assert run.hedges.n_won_by_replica > 0
        assert run.tally.n_fallback == 0
        assert running.state().failures == 0
        assert running.lies == []
        silent.released.set()
        slow.released.set()


def test_what_is_known_of_a_worker_outlives_the_guard(loaded: LoadedModel, model: Path, tmp_path: Path) -> None:
    class Remembering(Forgetful):
        def __init__(self) -> None:
            self.states: dict[str, TrustState] = {}
            self.evidence: list[str] = []

        def load(self, worker_id: str) -> TrustState | None:
            return self.states.get(worker_id)

        def save(self, worker_id: str, state: TrustState, evidence: object) -> None:
            self.states[worker_id] = state
            if evidence is not None:
                self.evidence.append(state.evidence_id)

    keeper = Remembering()
    with halves(loaded, model, tmp_path, EveryNth(100, first=20), ALL_UNPROVEN) as running:
        for times in range(2):
            guard = WorkGuard(loaded.store, WorkerAccess(running.edges), key=KEY, policy=ALL_UNPROVEN, keeper=keeper)
            guard.usable(running.edges.live())
            guard.settle()
            assert guard.usable(running.edges.live()) == running.edges.live() - ({running.liar} if times else set())
            generate(loaded, running.edges, PROMPTS, GREEDY, guard=guard)
            guard.close()
        assert keeper.states[running.liar].quarantined
        assert keeper.evidence == [keeper.states[running.liar].evidence_id]
