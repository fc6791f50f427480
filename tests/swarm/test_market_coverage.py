"""Coverage in a real Redis against a plain model of it, with an injected clock; and 200 volunteers at once.

The contracts: counts are exactly the ranges of live workers; silence past the lease is gone; a lease counts until it
is covered or ends; nothing is leased beyond its target.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from redis import BlockingConnectionPool, Redis

from kvasir.experts import ExpertRange
from kvasir.slicing.expert_ranges import merge_ranges
from market.coverage.codec import coverage_key, coverage_keys
from market.coverage.leases import Lease, NoLease, Refusal, Volunteer, take_lease
from market.coverage.model_facts import ModelFacts
from market.coverage.reading import announce_shape, snapshot, snapshot_of
from market.coverage.store import CoverageStore, TooManyLeasesError, unix_ms
from market.coverage.traffic import publish_traffic, traffic_key
from market.coverage.upkeep import Upkeep, refresh_targets
from market.settings import TargetBounds
from tests.swarm.redis_fixture import running_redis

BOUNDS = TargetBounds(2, 5)
FACTS = ModelFacts("tiny", "a" * 64, 3, 6, 64, 32, (0, 100, 150))
WORKERS = st.sampled_from(["ant", "bee", "cat", "dog"])
LEASE_MS = 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with running_redis(tmp_path_factory.mktemp("redis")) as running:
        pool = BlockingConnectionPool.from_url(running.url, max_connections=64, timeout=60)
        with Redis(connection_pool=pool) as client:
            yield client


@pytest.fixture
def client(server: Redis) -> Redis:
    server.flushdb()
    return server


class Now:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


def store_at(client: Redis, facts: ModelFacts = FACTS) -> tuple[CoverageStore, Now]:
    now = Now()
    return CoverageStore(client, facts, now), now


def ranges() -> st.SearchStrategy[tuple[ExpertRange, ...]]:
    cell = st.tuples(st.integers(1, 2), st.integers(0, 5), st.integers(1, 6))
    one = cell.map(lambda c: ExpertRange(c[0], c[1], min(6, c[1] + c[2])))
    return st.lists(one, max_size=3).map(merge_ranges)


class Market(RuleBasedStateMachine):
    """Redis beside two dictionaries that know what should be in it."""

    client: Redis

    def __init__(self) -> None:
        super().__init__()
        self.client.flushdb()
        self.store, self.now = store_at(self.client)
        self.held: dict[str, tuple[int, tuple[ExpertRange, ...]]] = {}
        self.leased: dict[str, tuple[str, int, ExpertRange]] = {}
        self.version = -1

    @rule(worker=WORKERS, held=ranges(), lease=st.integers(1, 3))
    def beat(self, worker: str, held: tuple[ExpertRange, ...], lease: int) -> None:
        self.state(worker, held, lease)

    @precondition(lambda self: self.leased)
    @rule(data=st.data(), lease=st.integers(1, 3))
    def fulfil_a_lease(self, data: st.DataObject, lease: int) -> None:
        worker, _, item = data.draw(st.sampled_from(list(self.leased.values())))
        before = self.held.get(worker, (0, ()))[1]
        self.state(worker, merge_ranges([*before, item]), lease)

    @rule(worker=WORKERS, budget=st.integers(0, 1500))
    def volunteer(self, worker: str, budget: int) -> None:
        self.forget_what_ended()
        answer = take_lease(self.store, Volunteer(worker, budget_bytes=budget), BOUNDS, base_s=1.0)
        if isinstance(answer, Lease):
            item = answer.choice.range
            before = self.counts() + self.pending()
            assert (before[item.layer, item.start : item.stop] < 2).all()
            mine = [*self.held.get(worker, (0, ()))[1], *(p[2] for p in self.leased.values() if p[0] == worker)]
            taken = sum(FACTS.range_bytes(r) for r in merge_ranges([*mine, item]))
            assert taken <= budget
            assert sum(FACTS.range_bytes(r) for r in [*merge_ranges(mine), item]) == taken  # nothing twice
            end = self.now.ms + round(answer.lease_s * 1000)
            self.leased[answer.lease_id] = (worker, end, item)

    @rule(worker=WORKERS)
    def leave(self, worker: str) -> None:
        self.store.leave(worker)
        self.held.pop(worker, None)
        self.leased = {key: value for key, value in self.leased.items() if value[0] != worker}

    @rule(ms=st.sampled_from([1, 400, 999, 1000, 2500]))
    def wait(self, ms: int) -> None:
        self.now.ms += ms

    @rule(name=st.sampled_from(["counts", "pending"]))
    def lose_a_key(self, name: str) -> None:
        self.client.delete(coverage_key(FACTS.fingerprint, name))

    @rule(name=st.sampled_from(["counts", "pending"]))
    def damage_a_key(self, name: str) -> None:
        self.client.set(coverage_key(FACTS.fingerprint, name), bytes([7]) * (2 * FACTS.n_cell))
        assert self.store.rebuild() == 1

    @invariant()
    def counts_are_exact(self) -> None:
        self.forget_what_ended()
        seen = snapshot_of(self.store, BOUNDS, with_workers=True)
        assert (seen.replicas == self.counts()).all()
        assert (seen.pending == self.pending()).all()
        assert {w.worker_id: (w.expires_ms, w.ranges) for w in seen.workers} == self.held
        assert seen.version >= self.version
        self.version = seen.version
        assert self.store.rebuild() == 0  # nothing has drifted

    def state(self, worker: str, held: tuple[ExpertRange, ...], lease: int) -> None:
        self.store.beat(worker, held, lease * LEASE_MS)
        self.held[worker] = (self.now.ms + lease * LEASE_MS, held)
        cells = cells_of(held)
        self.leased = {
            key: (who, end, item)
            for key, (who, end, item) in self.leased.items()
            if who != worker or not cells_of([item]) <= cells
        }

    def forget_what_ended(self) -> None:
        self.held = {worker: item for worker, item in self.held.items() if item[0] > self.now.ms}
        self.leased = {key: item for key, item in self.leased.items() if item[1] > self.now.ms}

    def counts(self) -> Any:
        return counted([item for _, held in self.held.values() for item in held])

    def pending(self) -> Any:
        return counted([item for _, _, item in self.leased.values()])


def cells_of(held: Any) -> set[tuple[int, int]]:
    return {(item.layer, expert) for item in held for expert in range(item.start, item.stop)}


def counted(held: list[ExpertRange]) -> Any:
    counts = np.zeros((FACTS.n_layer, FACTS.n_expert), int)
    for item in held:
        for expert in range(item.start, item.stop):
            counts[item.layer, expert] += 1
    return counts


def test_it_works(client: Redis) -> None:
    store, _ = store_at(client)
    answer = take_lease(store, Volunteer("ant", budget_bytes=400), BOUNDS, base_s=60.0)
    assert isinstance(answer, Lease)
    assert answer.choice.range.n_experts * FACTS.expert_bytes[answer.choice.range.layer] <= 400
    store.beat("ant", [answer.choice.range], LEASE_MS)
    seen = snapshot_of(store, BOUNDS)
    assert seen.replicas.sum() == answer.choice.range.n_experts
    assert seen.pending.sum() == 0


def test_coverage_equals_a_plain_model_whatever_happens(server: Redis) -> None:
    Market.client = server
    run_state_machine_as_test(Market, settings=settings(max_examples=25, stateful_step_count=25, deadline=None))


def test_200_volunteers_at_once_get_no_gap_twice(client: Redis) -> None:
    facts = ModelFacts("wide", "b" * 64, 4, 64, 64, 32, (0, 100, 130, 100))
    store = CoverageStore(client, facts)
    with ThreadPoolExecutor(200) as pool:
        answers = list(
            pool.map(lambda n: take_lease(store, Volunteer(f"w{n}", max_experts=4), BOUNDS, 60.0), range(200))
        )
    leases = [answer for answer in answers if isinstance(answer, Lease)]
    refusals = {answer.refusal for answer in answers if isinstance(answer, NoLease)}
    seen = snapshot_of(store, BOUNDS)
    assert seen.replicas.sum() == 0
    assert (seen.pending <= seen.targets).all()
    assert seen.pending.sum() == sum(lease.choice.range.n_experts for lease in leases)
    assert (seen.pending == seen.targets).all()  # 3 layers x 64 experts x 2 replicas for 200 x 4
    assert refusals == {Refusal.AT_TARGET}
    assert len({lease.lease_id for lease in leases}) == len(leases)


def test_the_same_worker_at_once_is_never_promised_an_expert_twice(client: Redis) -> None:
    store = CoverageStore(client, FACTS)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: take_lease(store, Volunteer("ant", max_experts=9), BOUNDS, 60.0), range(16)))
    leased = [answer.choice.range for answer in answers if isinstance(answer, Lease)]
    assert sum(item.n_experts for item in leased) == len(cells_of(leased)) <= 9


def test_a_claim_from_a_view_that_no_longer_holds_is_refused(client: Redis) -> None:
    store, _ = store_at(client)
    mine, other = ExpertRange(1, 0, 2), ExpertRange(2, 3, 5)
    view = store.look("ant")
    assert store.claim("ant", mine, view, LEASE_MS) is not None
    assert store.claim("ant", other, view, LEASE_MS) is None  # its own leases count against its budget
    view = store.look("ant")
    store.beat("ant", [ExpertRange(2, 0, 1)], LEASE_MS)
    assert store.claim("ant", other, view, LEASE_MS) is None  # and so does what it holds
    view = store.look("ant")
    store.beat("bee", [ExpertRange(2, 4, 6)], LEASE_MS)
    assert store.claim("ant", other, view, LEASE_MS) is None
    view = store.look("ant")
    store.set_targets(bytes(2 * FACTS.n_cell))
    assert store.claim("ant", other, view, LEASE_MS) is None
    assert store.claim("ant", other, store.look("ant"), LEASE_MS) is not None


def test_a_promise_ends_unless_it_is_renewed_by_name_and_never_past_the_longest(client: Redis) -> None:
    store, now = store_at(client)
    kept = take_lease(store, Volunteer("ant", max_experts=2), BOUNDS, base_s=1.0)
    lost = take_lease(store, Volunteer("bee", max_experts=2), BOUNDS, base_s=1.0)
    assert isinstance(kept, Lease) and isinstance(lost, Lease)
    for _ in range(4):
        now.ms += 800
        for worker in ("ant", "bee"):
            store.beat(worker, [], LEASE_MS, renew=[kept.lease_id], renew_ms=1000, most_ms=3000)
    assert snapshot_of(store, BOUNDS).pending.sum() == 0  # 3.2 s have passed since it began
    again = take_lease(store, Volunteer("ant", max_experts=2), BOUNDS, base_s=1.0)
    assert isinstance(again, Lease)
    now.ms += 900
    store.beat("ant", [], LEASE_MS, renew=[again.lease_id], renew_ms=1000, most_ms=3000)
    now.ms += 900
    assert snapshot_of(store, BOUNDS).pending.sum() == 2


def test_refusals_say_why(client: Redis) -> None:
    store, _ = store_at(client)
    small = take_lease(store, Volunteer("ant", budget_bytes=99), BOUNDS, 1.0)
    assert isinstance(small, NoLease) and small.refusal is Refusal.NOTHING_FITS
    assert "99 bytes of the budget are left; the smallest wanted expert has 100" in small.detail
    full = take_lease(store, Volunteer("ant", budget_bytes=200, stated=(ExpertRange(1, 0, 2),)), BOUNDS, 1.0)
    assert isinstance(full, NoLease) and full.refusal is Refusal.BUDGET_FULL
    for worker in ("ant", "bee"):
        store.beat(worker, [ExpertRange(1, 0, 6), ExpertRange(2, 0, 6)], LEASE_MS)
    done = take_lease(store, Volunteer("cat", budget_bytes=10**6), BOUNDS, 1.0)
    assert isinstance(done, NoLease) and done.refusal is Refusal.AT_TARGET


def test_a_worker_that_only_collects_promises_is_stopped(client: Redis) -> None:
    facts = ModelFacts("many", "c" * 64, 1, 200, 64, 32, (10,))
    store, _ = store_at(client, facts)
    n_taken = 0
    with pytest.raises(TooManyLeasesError, match="64 leases"):
        for number in range(1, 100):
            assert isinstance(take_lease(store, Volunteer("ant", max_experts=number), BOUNDS, 1.0), Lease)
            n_taken += 1
    assert n_taken == 64


def test_half_of_the_workers_vanish_and_the_version_tells(client: Redis) -> None:
    facts = ModelFacts("wide", "d" * 64, 8, 32, 64, 32, (100,) * 8)
    store, now = store_at(client, facts)
    for number in range(400):
        store.beat(f"w{number}", [ExpertRange(number % 8, 0, 32)], LEASE_MS * (1 if number % 2 else 10))
    before = store.version()
    assert store.version() == before
    now.ms += LEASE_MS
    assert store.version() > before
    assert snapshot_of(store, BOUNDS).replicas.sum() == 200 * 32


def test_targets_follow_traffic_through_redis(client: Redis) -> None:
    store, now = store_at(client)
    traffic = np.zeros((3, 6), np.float32)
    traffic[1:] = 50.0
    traffic[1, 2] = 500.0
    publish_traffic(client, FACTS.fingerprint, "backbone", traffic, now.ms / 1000)
    assert 0 < client.pttl(traffic_key(FACTS.fingerprint)) <= 60_000
    assert refresh_targets(store, BOUNDS, 600_000)
    seen = snapshot_of(store, BOUNDS)
    assert seen.targets[1, 2] == 5
    assert seen.targets[0].sum() == 0
    assert set(seen.targets[2]) == {2}
    assert not refresh_targets(store, BOUNDS, 1000)
    answer = take_lease(store, Volunteer("ant", max_experts=1, stated=()), BOUNDS, 1.0)
    assert isinstance(answer, Lease)


def test_upkeep_takes_turns_and_mends(client: Redis) -> None:
    store, now = store_at(client)
    store.beat("ant", [ExpertRange(1, 0, 3)], 10**9)
    Upkeep(store, BOUNDS).tend()
    client.set(coverage_key(FACTS.fingerprint, "counts"), bytes([1]) * (2 * FACTS.n_cell))
    now.ms += 30_000
    Upkeep(store, BOUNDS).tend()  # another process: the rebuild is not due
    assert snapshot_of(store, BOUNDS).replicas.sum() > 3
    now.ms += 30_001
    Upkeep(store, BOUNDS).tend()
    assert snapshot_of(store, BOUNDS).replicas.sum() == 3


def test_a_process_without_the_model_reads_a_snapshot(client: Redis) -> None:
    store, now = store_at(client)
    assert snapshot(client, FACTS.fingerprint, BOUNDS) is None
    announce_shape(store)
    store.beat("ant", [ExpertRange(2, 1, 3)], LEASE_MS, '{"url": "relay:x"}')
    seen = snapshot(client, FACTS.fingerprint, BOUNDS, with_workers=True, clock=now)
    assert seen is not None
    assert (seen.name, seen.replicas.sum(), seen.n_lacking) == ("tiny", 2, 2 * 12 - 2)
    assert [(w.worker_id, w.ranges, w.facts) for w in seen.workers] == [
        ("ant", (ExpertRange(2, 1, 3),), {"url": "relay:x"})
    ]


def test_everything_in_redis_expires(client: Redis) -> None:
    store, _ = store_at(client)
    announce_shape(store)
    take_lease(store, Volunteer("ant", max_experts=2), BOUNDS, 1.0)
    store.beat("bee", [ExpertRange(2, 1, 3)], LEASE_MS)
    refresh_targets(store, BOUNDS, 0)
    Upkeep(store, BOUNDS).tend()
    keys: Any = client.keys()
    assert {str(key, "ascii") for key in keys} >= set(coverage_keys(FACTS.fingerprint))
    assert all(0 < client.pttl(key) <= 3_600_000 for key in keys)
    assert all(FACTS.fingerprint in str(key, "ascii") for key in keys)


def test_the_clock_is_this_machines(client: Redis) -> None:
    seconds, _ = client.time()
    assert abs(unix_ms() / 1000 - seconds) < 5
