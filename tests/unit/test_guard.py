"""The guard over answers that a test makes up: what is confirmed, sampled, blamed, and what never is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backbone.engine.dispatch.dispatcher import MOVED, ExpertDispatcher
from backbone.engine.serving.tally import Tally
from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.measured import Measured
from backbone.engine.swarm.placement import ReplicaMap
from backbone.engine.swarm.reply_format import ReplyFormat
from backbone.engine.swarm.transport import NoWorkers
from backbone.engine.trust.audit import Answer, Evidence, Judge, ReplayMemory, Reply, close_rows
from backbone.engine.trust.book import TrustBook
from backbone.engine.trust.entry_tests import WorkerAccess
from backbone.engine.trust.guard import MAX_SAMPLE_PAIRS, MAX_SAMPLES_WAITING, Lie, WorkGuard
from backbone.engine.trust.standing import TrustPolicy, TrustState, after_good_check, after_lie
from kvasir.errors import ConfigError, EdgeTimeout
from kvasir.experts import ExpertRange, FloatRows
from kvasir.gguf.index import GGUFIndex
from kvasir.kernels.api import EncodedRows, Pairs, RowFormat
from kvasir.kernels.registry import kernel_named
from kvasir.slicing.model_card import ModelCard
from tests.oracles.tiny_gguf import TinyModel, write_tiny

MakeGuard = Callable[..., WorkGuard]
NEVER = TrustPolicy(proven_after=0, first_share=0.0, least_share=0.0)
ALWAYS = TrustPolicy(proven_after=0, first_share=1.0, least_share=1.0)
UNPROVEN = TrustPolicy(proven_after=10**9)


class OneWorker:
    """A worker "w" with experts 0 to 15 that answers entry tests as it should, or never."""

    def __init__(self, store: ExpertStore, *, is_silent: bool = False) -> None:
        self._store = store
        self._coverage = ReplicaMap.build({"w": [ExpertRange(0, 0, 16)]})
        self.is_silent = is_silent
        self.n_too_few = 0  # outputs that are left out of an answer
        self.moves_to: ExpertRange | None = None  # the slice that it has when the next question reaches it
        self.reports: list[str] = []
        self.asked: list[bytes] = []

    def coverage(self) -> ReplicaMap:
        return self._coverage

    def live(self) -> frozenset[str]:
        return frozenset({"w"})

    def measurements(self) -> Mapping[str, Measured]:
        return {}

    def dispatch(
        self,
        worker_id: str,
        layer: int,
        rows: EncodedRows,
        row_format: RowFormat,
        pair_rows: Pairs,
        pair_ids: Pairs,
        deadline_s: float,
    ) -> Future[FloatRows]:
        future: Future[FloatRows] = Future()
        self.asked.append(rows.tobytes())
        if self.is_silent:
            future.set_exception(EdgeTimeout("no result within 5 s"))
        else:
            if self.moves_to is not None:
                self.hold(self.moves_to)
                self.moves_to = None
            pair_ids = pair_ids + np.int32(self._coverage.held["w"][0].start)
            outputs = self._store.layer(layer).compute(rows, pair_rows, pair_ids)
            future.set_result(outputs[: len(outputs) - self.n_too_few])
        return future

    def report(self, worker_id: str, reason: str) -> None:
        self.reports.append(reason)

    def hold(self, *ranges: ExpertRange) -> None:
        self._coverage = ReplicaMap.build({"w": ranges})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpertStore]:
    path: Path = write_tiny(tmp_path_factory.mktemp("model") / "m.gguf", TinyModel("qwen3moe", "Q4_K"))
    with GGUFIndex.open(path) as index:
        yield ExpertStore(index, ModelCard.from_index(index), kernel_named("kx1"))


@pytest.fixture
def transport(store: ExpertStore) -> OneWorker:
    return OneWorker(store)


@pytest.fixture
def make_guard(store: ExpertStore, transport: OneWorker) -> Iterator[MakeGuard]:
    made: list[WorkGuard] = []

    def make(policy: TrustPolicy, workers: WorkerAccess | None = None, **options: Any) -> WorkGuard:
        workers = workers or WorkerAccess(transport)
        made.append(WorkGuard(store, workers, key=b"k" * 32, policy=policy, now=lambda: 50.0, **options))
        return made[-1]

    yield make
    for guard in made:
        guard.close()


def reply_of(store: ExpertStore, n_rows: int = 4, seed: int = 0) -> Reply:
    rng = np.random.default_rng(seed)
    rows = store.kernel.encode_rows(rng.standard_normal((n_rows, 256), np.float32))
    pair_rows = np.repeat(np.arange(n_rows, dtype=np.int32), 2)
    ids = rng.integers(0, 16, 2 * n_rows).astype(np.int32)
    return Reply("w", 0, rows, pair_rows, ids, store.layer(0).compute(rows, pair_rows, ids))


def spoilt(reply: Reply, pair: int = 0, value: float | None = None) -> Reply:
    outputs = reply.outputs.copy()
    outputs[pair, 7] = outputs[pair, 7] + np.float32(1e-3) if value is None else value
    return replace(reply, outputs=outputs)


def test_an_unproven_workers_reply_is_confirmed_and_paid(store: ExpertStore, make_guard: MakeGuard) -> None:
    guard = make_guard(UNPROVEN)
    reply = reply_of(store)
    outputs, is_right = guard.receive(reply, ["r"], None)
    assert is_right
    assert np.array_equal(outputs, reply.outputs)
    assert guard.book.state("w") == TrustState(verified=8)
    (receipt,) = guard.receipts.drain()
    assert (receipt.row_experts, receipt.verified, receipt.start, receipt.stop) == (8, True, 0, 16)
    assert guard.exposures.unconfirmed_workers("r") == ()


@pytest.mark.parametrize("value", [None, np.nan, np.inf, 1e30])
@pytest.mark.parametrize("pair", [0, 7])
def test_one_wrong_value_of_an_unproven_worker_is_a_proof(
    store: ExpertStore,
    transport: OneWorker,
    make_guard: MakeGuard,
    value: float | None,
    pair: int,
) -> None:
    guard = make_guard(UNPROVEN)
    right = reply_of(store)
    outputs, is_right = guard.receive(spoilt(right, pair, value), ["r"], None)
    assert not is_right
    assert np.array_equal(outputs, right.outputs)
    state = guard.book.state("w")
    assert (state.quarantined, state.failures) == (True, 1)
    assert transport.reports == [f"a wrong answer was proven (evidence {state.evidence_id})"]
    assert guard.receipts.drain() == ()
    guard.receive(right, ["r"], None)
    (unpaid,) = guard.receipts.drain()  # what comes from quarantine is not paid, right or not, and listed if right
    assert (unpaid.verified, unpaid.row_experts) == (False, right.n_pairs)
    assert state.evidence_id in unpaid.reason


def test_evidence_names_what_was_wrong(store: ExpertStore) -> None:
    right = reply_of(store)
    wrong = spoilt(spoilt(right, 2), 5)
    judge = Judge(store)
    evidence = judge.evidence(wrong, judge.right_outputs(wrong), "audit", 50.0)
    assert evidence is not None
    assert evidence.expert_ids == tuple(sorted({int(right.expert_ids[2]), int(right.expert_ids[5])}))
    assert (evidence.n_pairs, evidence.n_wrong, evidence.layer, evidence.found_by) == (8, 2, 0, "audit")
    assert evidence.expected_hash != evidence.answered_hash
    assert all(len(evidence.as_json()[name]) == 64 for name in ("rows_hash", "expected_hash", "answered_hash"))
    assert judge.evidence(right, judge.right_outputs(right), "audit", 50.0) is None


def test_nobody_is_blamed_when_our_own_replica_is_not_of_one_mind(store: ExpertStore, make_guard: MakeGuard) -> None:
    guard = make_guard(UNPROVEN)
    honest = reply_of(store)
    answers = iter([spoilt(honest).outputs, honest.outputs])

    class Unsteady(Judge):
        def right_outputs(self, reply: Reply) -> Answer:
            return next(answers)

    guard._judge = Unsteady(store)
    guard.receive(honest, [], None)
    assert guard.book.state("w") == TrustState()


def test_a_proven_workers_reply_is_used_as_it_is_and_checked_later(store: ExpertStore, make_guard: MakeGuard) -> None:
    lies: list[Lie] = []
    guard = make_guard(ALWAYS, on_lie=lies.append)
    guard.receive(reply_of(store), ["early"], None)
    guard.settle()
    assert sum(r.row_experts for r in guard.receipts.drain() if r.verified) == 8
    wrong = spoilt(reply_of(store, seed=1))
    outputs, is_right = guard.receive(wrong, ["late"], None)
    assert is_right
    assert np.array_equal(outputs, wrong.outputs)
    guard.settle()
    assert [lie.evidence.found_by for lie in lies] == ["audit"]
    assert lies[0].flagged.request_ids == ("early", "late")  # one right sample forgives nothing that was before it
    assert lies[0].n_withheld == 8
    assert guard.exposures.evidence_of("late") == (lies[0].evidence.evidence_id,)


def test_what_is_not_sampled_is_never_recomputed_but_values_that_are_no_numbers_are(
    store: ExpertStore, make_guard: MakeGuard
) -> None:
    guard = make_guard(NEVER)
    for seed in range(20):
        guard.receive(spoilt(reply_of(store, seed=seed)), ["r"], None)
    guard.settle()
    assert guard.counters.check_cpu_s == 0.0
    assert guard.book.state("w").failures == 0
    outputs, is_right = guard.receive(spoilt(reply_of(store), value=np.nan), ["r"], None)
    assert not is_right
    assert np.isfinite(outputs).all()
    assert guard.book.state("w").quarantined


def test_an_old_answer_to_another_question_is_confirmed_and_the_same_question_again_is_not(
    store: ExpertStore, make_guard: MakeGuard
) -> None:
    guard = make_guard(NEVER)
    first, second = reply_of(store, seed=1), reply_of(store, seed=2)
    for _ in range(2):
        outputs, is_right = guard.receive(first, ["a"], None)
        assert is_right and outputs is first.outputs
    assert guard.counters.n_confirmed_pairs == 0
    outputs, is_right = guard.receive(replace(second, outputs=first.outputs.copy()), ["b"], None)
    assert not is_right
    assert np.array_equal(outputs, second.outputs)
    assert guard.book.state("w").quarantined


def test_an_answer_of_the_entry_test_cannot_be_given_again(store: ExpertStore, make_guard: MakeGuard) -> None:
    guard = make_guard(NEVER)
    assert guard._judge_entry(reply_of(store, seed=1))
    _, is_right = guard.receive(replace(reply_of(store, seed=2), outputs=reply_of(store, seed=1).outputs), ["a"], None)
    assert not is_right


def test_the_memory_of_answers_is_bounded_and_each_nodes_own(store: ExpertStore) -> None:
    memory = ReplayMemory(max_answers=2, max_nodes=2)
    other = replace(reply_of(store, seed=9), outputs=reply_of(store, seed=0).outputs)
    assert not memory.is_old("a", reply_of(store, seed=0))
    assert not memory.is_old("b", other)
    assert memory.is_old("a", other)
    for seed in (1, 2):
        assert not memory.is_old("a", reply_of(store, seed=seed))
    assert not memory.is_old("a", other)  # two newer ones came
    for name in ("c", "d"):
        assert not memory.is_old(name, reply_of(store))
    assert not memory.is_old("a", reply_of(store, seed=0))  # the node was forgotten


def test_strict_pairs_are_confirmed_and_the_others_are_not(store: ExpertStore, make_guard: MakeGuard) -> None:
    guard = make_guard(NEVER)
    right = reply_of(store)
    strict = np.arange(8) < 2
    outputs, is_right = guard.receive(spoilt(right, 7), ["other"], strict)
    assert is_right
    assert np.array_equal(outputs[:7], right.outputs[:7])
    assert not np.array_equal(outputs[7], right.outputs[7])
    assert guard.counters.n_confirmed_pairs == 2
    outputs, is_right = guard.receive(spoilt(right, 1), ["other"], strict)
    assert not is_right
    assert np.array_equal(outputs, right.outputs)


def test_a_sample_of_a_large_reply_is_bounded_and_unforeseeable(store: ExpertStore, make_guard: MakeGuard) -> None:
    guard = make_guard(ALWAYS)
    chosen = [guard._some(1000).tolist() for _ in range(2)]
    assert all(len(set(pairs)) == MAX_SAMPLE_PAIRS and pairs == sorted(pairs) for pairs in chosen)
    assert chosen[0] != chosen[1]
    guard.receive(reply_of(store, n_rows=100), ["r"], None)
    guard.settle()
    assert guard.counters.n_audited_pairs == MAX_SAMPLE_PAIRS


def test_a_new_worker_serves_after_its_test_and_never_sees_the_same_rows(
    transport: OneWorker,
    make_guard: MakeGuard,
) -> None:
    guard = make_guard(UNPROVEN)
    assert guard.usable(frozenset({"w"})) == frozenset()
    guard.settle()
    assert guard.usable(frozenset({"w"})) == {"w"}
    transport.hold(ExpertRange(0, 0, 8))
    assert guard.usable(frozenset({"w"})) == frozenset()  # other ranges: tested again
    guard.settle()
    assert guard.usable(frozenset({"w"})) == {"w"}
    assert len(transport.asked) == len(set(transport.asked)) == 2


def test_a_test_without_an_answer_keeps_out_but_blames_nobody(transport: OneWorker, make_guard: MakeGuard) -> None:
    transport.is_silent = True
    guard = make_guard(UNPROVEN)
    guard.usable(frozenset({"w"}))
    guard.settle()
    assert guard.usable(frozenset({"w"})) == frozenset()
    guard.settle()
    assert len(transport.asked) == 1  # it is not asked again at once
    assert guard.book.state("w") == TrustState()


def test_trust_receipts_and_evidence_are_the_nodes(
    store: ExpertStore, transport: OneWorker, make_guard: MakeGuard
) -> None:
    lies: list[Lie] = []
    guard = make_guard(
        UNPROVEN, WorkerAccess(transport, node_of=lambda worker_id: f"node of {worker_id}"), on_lie=lies.append
    )
    guard.usable(frozenset({"w"}))
    guard.settle()
    assert guard.usable(frozenset({"w"})) == {"w"}
    guard.receive(reply_of(store), ["r"], None)
    assert {receipt.node_id for receipt in guard.receipts.drain()} == {"node of w"}
    guard.receive(spoilt(reply_of(store)), ["r"], None)
    assert [lie.evidence.worker_id for lie in lies] == ["node of w"]
    assert guard.usable(frozenset({"w"})) == frozenset()
    assert set(guard.book.states()) == {"node of w"}


def test_an_oddity_only_raises_the_share(make_guard: MakeGuard) -> None:
    guard = make_guard(NEVER)
    guard.note_oddity("w", "shape")
    assert guard.book.state("w") == TrustState(doubt=NEVER.doubt_pairs)
    assert guard.book.is_proven("w")


def test_the_float_kernels_tolerance() -> None:
    right = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    near, far = right * np.float32(1.0001), right.copy()
    far[1] = -far[1]
    assert close_rows(near, right).all()
    assert close_rows(far, right).tolist() == [True, False, True]
    assert not close_rows(np.full_like(right, np.nan), right).any()
    assert close_rows(np.zeros_like(right), np.zeros_like(right)).all()


def test_a_reply_that_an_audit_overtakes_is_confirmed_after_all(store: ExpertStore, make_guard: MakeGuard) -> None:
    """The lie is proven between the look at the worker's trust and the note of who uses the answer."""
    guard = make_guard(NEVER)
    right = reply_of(store)

    def convicted_meanwhile(worker_id: str, request_ids: list[str]) -> None:
        guard.book.change(worker_id, lambda state: replace(state, quarantined=True))

    guard.exposures.note = convicted_meanwhile  # type: ignore[method-assign,assignment]
    outputs, is_right = guard.receive(spoilt(right), ["r"], None)
    assert not is_right
    assert np.array_equal(outputs, right.outputs)


def test_samples_that_find_no_room_are_checked_at_once(store: ExpertStore, make_guard: MakeGuard) -> None:
    lies: list[Lie] = []
    guard = make_guard(ALWAYS, on_lie=lies.append)
    may_go_on = threading.Event()
    guard._audits.offer(lambda: assert_set(may_go_on))
    for number in range(MAX_SAMPLES_WAITING + 5):
        guard.receive(reply_of(store, seed=number), ["r"], None)
    assert guard.counters.n_audited_pairs >= 8 * 4  # those beyond the queue, while its thread is held
    guard.receive(spoilt(reply_of(store)), ["r"], None)
    assert len(lies) == 1
    may_go_on.set()
    guard.settle()
    assert guard.counters.n_audited_pairs == 8 * (MAX_SAMPLES_WAITING + 6)


def assert_set(event: threading.Event) -> None:
    assert event.wait(30.0)


class Keeper:
    """Keeps states unless it is out of order."""

    def __init__(self) -> None:
        self.saved: list[tuple[str, TrustState, Evidence | None]] = []
        self.is_broken = False

    def load(self, worker_id: str) -> TrustState | None:
        return TrustState(verified=7)

    def save(self, worker_id: str, state: TrustState, evidence: Evidence | None) -> None:
        if self.is_broken:
            raise OSError("the database is away")
        self.saved.append((worker_id, state, evidence))


def test_evidence_waits_for_a_keeper_that_was_away(store: ExpertStore) -> None:
    keeper = Keeper()
    book = TrustBook(UNPROVEN, keeper)
    wrong = spoilt(reply_of(store))
    judge = Judge(store)
    evidence = judge.evidence(wrong, judge.right_outputs(wrong), "audit", 50.0)
    assert evidence is not None
    assert book.load("w") == TrustState(verified=7)
    book.change("w", lambda state: after_lie(state, evidence.evidence_id), evidence)
    book.change("w", lambda state: after_good_check(state, 3))
    keeper.is_broken = True
    with pytest.raises(OSError, match="away"):
        book.save()
    keeper.is_broken = False
    book.save()
    book.save()
    assert keeper.saved == [("w", book.state("w"), evidence)]
    assert book.state("w").quarantined


def test_closing_saves_and_outlives_a_keeper_that_is_away(store: ExpertStore, transport: OneWorker) -> None:
    for is_broken in (False, True):
        keeper = Keeper()
        keeper.is_broken = is_broken
        guard = WorkGuard(store, WorkerAccess(transport), key=b"k" * 32, policy=ALWAYS, keeper=keeper)
        guard.usable(frozenset({"w"}))
        guard.settle()
        guard.receive(spoilt(reply_of(store)), ["r"], None)
        guard.close()
        assert [state.quarantined for _, state, _ in keeper.saved] == ([] if is_broken else [True])


def test_an_answer_of_the_wrong_shape_puts_its_worker_in_doubt(
    store: ExpertStore, transport: OneWorker, make_guard: MakeGuard
) -> None:
    guard = make_guard(UNPROVEN)
    guard.usable(frozenset({"w"}))
    guard.settle()
    transport.n_too_few = 1

    async def call() -> None:
        await ExpertDispatcher(store, transport, guard=guard).submit(0, torch.ones(1, 256), torch.tensor([[1, 2]]))

    asyncio.run(call())
    assert guard.book.state("w").doubt == UNPROVEN.doubt_pairs
    assert guard.book.state("w").failures == 0


def test_a_worker_whose_ranges_change_under_a_question_is_not_blamed(
    store: ExpertStore, transport: OneWorker, make_guard: MakeGuard
) -> None:
    """It comes back with another slice: local ids that were counted before mean other experts now."""
    guard = make_guard(UNPROVEN)
    guard.usable(frozenset({"w"}))
    guard.settle()
    transport.moves_to = ExpertRange(0, 8, 16)

    async def call() -> torch.Tensor:
        tally = Tally()
        dispatcher = ExpertDispatcher(store, transport, guard=guard, on_served=tally.add)
        outputs = await dispatcher.submit(0, torch.ones(1, 256), torch.tensor([[1, 2]]))
        assert tally.fallback_by_reason == {MOVED: 2}
        return outputs

    outputs = asyncio.run(call())
    assert torch.equal(outputs, asyncio.run(alone(store)))
    guard.settle()
    assert guard.book.state("w").failures == 0
    transport.moves_to = ExpertRange(0, 0, 8)  # and now within its entry test
    fresh = make_guard(UNPROVEN)
    fresh.usable(frozenset({"w"}))
    fresh.settle()
    assert fresh.book.state("w") == TrustState()
    assert fresh.usable(frozenset({"w"})) == frozenset()


async def alone(store: ExpertStore) -> torch.Tensor:
    return await ExpertDispatcher(store, NoWorkers()).submit(0, torch.ones(1, 256), torch.tensor([[1, 2]]))


def test_a_guard_that_rounds_in_another_way_is_refused(
    store: ExpertStore, transport: OneWorker, make_guard: MakeGuard
) -> None:
    guard = make_guard(UNPROVEN, WorkerAccess(transport, ReplyFormat.F16))
    with pytest.raises(ConfigError, match="f16 replies, the dispatcher f32"):
        ExpertDispatcher(store, transport, guard=guard)
