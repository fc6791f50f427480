"""The ledger in SQL. The contracts:

- every event sums to zero, and is written whole or not at all;
- the same event or batch counts once: replays, other orders and concurrent writers change nothing;
- a balance is the sum of its account's entries;
- nothing that was written is changed or deleted; a correction is a further event;
- who is no worker node is never paid; what a lie left unvouched is withheld, with its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from market.ledger.entries import TREASURY, WITHHELD, EntryType, Event, LedgerError, make_event
from market.ledger.posting import balance, post, rebuild_balances, reverse, wrong_balances
from market.ledger.quotes import quotes_of, record_quote
from market.ledger.receipts import record
from market.ledger.rewards import Quote
from market.ledger.work_batch import DAY_S, WorkBatch, WorkReceipt
from market.models.ledger import AppendOnlyError, LedgerBalance, LedgerEntry, LedgerEvent
from market.models.nodes import Account
from market.models.work import WorkDay
from market.nodes.tokens import TokenScope, issue
from tests.site.database import database_at

MODEL = "f" * 64
LIE = "a wrong answer was proven (evidence 1)"


@pytest.fixture(scope="module", autouse=True)
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with database_at(tmp_path_factory.mktemp("ledger") / "ledger.sqlite3"):
        yield


@pytest.fixture(autouse=True)
def rolled_back(database: None) -> Iterator[None]:
    """Each test begins with an empty ledger."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def account(public_id: str) -> Account:
    return Account.objects.create(public_id=public_id, digest=bytes(32), name=public_id)


def node(owner: Account | None, scope: TokenScope = TokenScope.WORKER) -> str:
    return issue(scope, "node", account=owner).public_id


def work(node_id: str, row_experts: int = 10, *, reason: str = "", layer: int = 3, day: int = 20_000) -> WorkReceipt:
    return WorkReceipt(node_id, MODEL, layer, 0, 8, row_experts, day * DAY_S + 60.0, reason)


def owners_and_nodes() -> tuple[str, str, str]:
    ann, bob = account("ann"), account("bob")
    return node(ann), node(ann), node(bob)


def test_it_works() -> None:
    first, second, third = owners_and_nodes()
    assert record(WorkBatch("b:1", (work(first), work(second, 5), work(third, 1), work(third, 7, reason=LIE))))
    assert (balance("owner:ann"), balance("owner:bob"), balance(WITHHELD)) == (15_000, 1_000, 7_000)
    assert balance(TREASURY) == -23_000
    days = WorkDay.objects.filter(node_id=third).order_by("reason")
    assert [(day.reason, day.row_experts, day.microcredits) for day in days] == [("", 1, 1000), (LIE, 7, 7000)]
    assert wrong_balances() == []


def test_a_replayed_batch_changes_nothing() -> None:
    batch = WorkBatch("b:1", (work(node(account("ann"))),))
    assert [record(batch) for _ in range(3)] == [True, False, False]
    assert balance("owner:ann") == 10_000
    assert (LedgerEvent.objects.count(), WorkDay.objects.get().row_experts) == (1, 10)


def test_another_batch_with_the_same_id_is_refused() -> None:
    node_id = node(account("ann"))
    record(WorkBatch("b:1", (work(node_id),)))
    with pytest.raises(LedgerError, match="recorded before, with other receipts"):
        record(WorkBatch("b:1", (work(node_id, 11),)))
    assert balance("owner:ann") == 10_000


def test_who_is_no_worker_node_is_not_paid() -> None:
    backbone = node(None, TokenScope.BACKBONE)
    assert record(WorkBatch("b:1", (work("10.0.0.1:7000"), work("0" * 16), work(backbone))))
    assert (LedgerEvent.objects.count(), WorkDay.objects.count(), balance(TREASURY)) == (0, 0, 0)


def test_a_node_without_owner_earns_for_itself() -> None:
    node_id = node(None)
    record(WorkBatch("b:1", (work(node_id),)))
    assert balance(f"node:{node_id}") == 10_000


def test_days_and_ranges_are_kept_apart_and_otherwise_summed() -> None:
    node_id = node(account("ann"))
    for number, item in enumerate([work(node_id), work(node_id), work(node_id, day=20_001), work(node_id, layer=4)]):
        record(WorkBatch(f"b:{number}", (item,)))
    days = WorkDay.objects.values_list("day", "layer", "row_experts").order_by("day", "layer")
    assert list(days) == [(20_000, 3, 20), (20_000, 4, 10), (20_001, 3, 10)]


def test_pay_is_at_the_rate_that_was_promised_with_the_lease() -> None:
    node_id = node(account("ann"))
    record_quote(node_id, Quote(MODEL, 3, 0, 8, 1750, at=20_000.0 * DAY_S))
    record_quote(node_id, Quote(MODEL, 3, 0, 8, 9999, at=20_000.0 * DAY_S + 61))
    record(WorkBatch("b:1", (work(node_id), work(node_id, layer=4))))
    assert balance("owner:ann") == 17_500 + 10_000


def test_quotes_that_were_replaced_long_ago_are_dropped() -> None:
    node_id = node(None)
    for day in (0, 20, 40):
        record_quote(node_id, Quote(MODEL, 3, 0, 8, 1, at=float(day * DAY_S)))
    record_quote(node_id, Quote(MODEL, 4, 0, 8, 1, at=1e9))
    assert [quote.at / DAY_S for quote in quotes_of([node_id])[node_id] if quote.layer == 3] == [20, 40]


def test_an_event_that_does_not_sum_to_zero_is_not_written() -> None:
    with pytest.raises(LedgerError, match="sum to 1"):
        post(Event("e", EntryType.EARNED, {"owner:a": 5, TREASURY: -4}))
    assert LedgerEvent.objects.count() == 0


def test_an_event_id_means_one_thing() -> None:
    event = make_event("e", EntryType.EARNED, [("owner:a", 5), (TREASURY, -5)])
    assert [post(event), post(event)] == [True, False]
    with pytest.raises(LedgerError, match="with other postings"):
        post(make_event("e", EntryType.EARNED, [("owner:a", 6), (TREASURY, -6)]))
    assert balance("owner:a") == 5


def test_a_reversal_moves_everything_back_once() -> None:
    record(WorkBatch("b:1", (work(node(account("ann"))),)))
    assert [reverse("earned:b:1", "counted twice"), reverse("earned:b:1", "again")] == [True, False]
    assert (balance("owner:ann"), balance(TREASURY)) == (0, 0)
    with pytest.raises(LedgerError, match="no event 'earned:b:2'"):
        reverse("earned:b:2", "?")
    with pytest.raises(LedgerError, match="reversal itself"):
        reverse("reversed:earned:b:1", "?")


@pytest.mark.parametrize(
    "change",
    [
        lambda event: LedgerEntry.objects.update(microcredits=1),
        lambda event: LedgerEntry.objects.filter(pk=1).delete(),
        lambda event: event.entries.all().delete(),
        lambda event: event.entries.first().delete(),
        lambda event: event.entries.first().save(),
        lambda event: event.save(),
        lambda event: event.delete(),
        lambda event: LedgerEvent.objects.bulk_update([event], ["note"]),
        lambda event: LedgerEvent.objects.update_or_create(event_id="e"),
        lambda event: LedgerEvent.objects.bulk_create([event], update_conflicts=True),
    ],
)
def test_what_was_written_is_never_changed(change: Callable[[LedgerEvent], object]) -> None:
    post(make_event("e", EntryType.EARNED, [("owner:a", 5), (TREASURY, -5)]))
    with pytest.raises(AppendOnlyError, match="write a further event"):
        change(LedgerEvent.objects.get())


def test_balances_are_made_anew_from_the_entries() -> None:
    record(WorkBatch("b:1", (work(node(account("ann"))),)))
    LedgerBalance.objects.filter(account__name="owner:ann").update(microcredits=1)
    LedgerBalance.objects.filter(account__name=TREASURY).delete()
    assert {(name, total, held) for _, name, total, held in wrong_balances()} == {
        ("owner:ann", 10_000, 1),
        (TREASURY, -10_000, 0),
    }
    assert (rebuild_balances(), rebuild_balances()) == (2, 0)
    assert balance("owner:ann") == 10_000


batches = st.lists(
    st.lists(
        st.builds(
            lambda who, n, reason, layer, day: (who, n, reason, layer, day),
            st.integers(0, 3),  # the last is no node
            st.integers(1, 1000),
            st.sampled_from(["", "", LIE]),
            st.integers(1, 2),
            st.integers(20_000, 20_001),
        ),
        max_size=4,
    ),
    max_size=5,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=batches, data=st.data())
def test_any_order_and_any_replay_end_in_the_same_ledger(
    contents: list[list[tuple[int, int, str, int, int]]], data: st.DataObject
) -> None:
    with transaction.atomic():
        nodes = [*owners_and_nodes(), "10.0.0.1:7000"]
        made = [
            WorkBatch(f"b:{number}", tuple(work(nodes[who], n, reason=r, layer=x, day=d) for who, n, r, x, d in items))
            for number, items in enumerate(contents)
        ]
        replays = data.draw(st.lists(st.sampled_from(made), max_size=6)) if made else []
        sent = data.draw(st.permutations([*made, *replays]))
        assert sum(record(batch) for batch in sent) == len(made)
        expected: Counter[str] = Counter()
        days: Counter[tuple[str, str, int, int]] = Counter()
        names = dict(zip(nodes, ("owner:ann", "owner:ann", "owner:bob"), strict=False))
        for item in (item for batch in made for item in batch.receipts if item.node_id in names):
            expected[WITHHELD if item.reason else names[item.node_id]] += 1000 * item.row_experts
            expected[TREASURY] -= 1000 * item.row_experts
            days[item.node_id, item.reason, item.layer, item.day] += item.row_experts
        assert {name: balance(name) for name in expected} == dict(expected)
        stored = WorkDay.objects.values_list("node_id", "reason", "layer", "day", "row_experts")
        assert {tuple(row[:4]): row[4] for row in stored} == dict(days)
        assert wrong_balances() == []
        transaction.set_rollback(True)


def test_amounts_that_sql_cannot_hold_are_refused() -> None:
    node_id = node(account("ann"))
    record_quote(node_id, Quote(MODEL, 3, 0, 8, 1 << 40, at=0.0))
    with pytest.raises(LedgerError, match="not a valid amount"), transaction.atomic():
        record(WorkBatch("b:1", (replace(work(node_id), row_experts=1 << 40),)))
    assert WorkDay.objects.count() == 0
