"""Pay, without SQL. The contracts:

- a receipt is worth its row-experts at the rate that was quoted when its range was leased, else at the base rate;
- only quotes that were given no later than the work count, and the newest of them;
- amounts are whole numbers, rounded down once for each receipt, and every event sums to zero;
- what a lie left unvouched goes to `withheld`, never to an owner.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from market.ledger.entries import TREASURY, WITHHELD, EntryType, Event, LedgerError, check, make_event, reversal
from market.ledger.rewards import Priced, Quote, events, microcredits_of, price
from market.ledger.work_batch import MOST_ROW_EXPERTS, WorkBatch, WorkError, WorkReceipt

MODEL = "f" * 64
WORK = WorkReceipt("n1", MODEL, 3, 0, 8, 100, at=1000.0)
LIE = replace(WORK, reason="a wrong answer was proven (evidence 1)")
ACCOUNTS = {"n1": "owner:a", "n2": "owner:a", "n3": "owner:b"}


def quote(start: int, stop: int, rate: int, at: float = 0.0, layer: int = 3, fingerprint: str = MODEL) -> Quote:
    return Quote(fingerprint, layer, start, stop, rate, at)


def test_it_works() -> None:
    batch = WorkBatch("b:1", (WORK, replace(WORK, node_id="n3"), replace(LIE, node_id="n3")))
    priced = price(batch, {"n1": [quote(0, 8, 2000)]}, base_rate=1000)
    earned, withheld = events("b:1", priced, ACCOUNTS)
    assert earned.entry_type is EntryType.EARNED
    assert earned.postings == {"owner:a": 200_000, "owner:b": 100_000, TREASURY: -300_000}
    assert withheld.entry_type is EntryType.WITHHELD
    assert withheld.postings == {WITHHELD: 100_000, TREASURY: -100_000}


def test_without_a_quote_the_base_rate_is_paid() -> None:
    assert microcredits_of(WORK, [], 1000) == 100_000


def test_a_quote_for_another_place_means_nothing() -> None:
    others = [quote(0, 8, 9, layer=2), quote(0, 8, 9, fingerprint="e" * 64), quote(8, 16, 9)]
    assert microcredits_of(WORK, others, 1000) == 100_000


def test_a_later_quote_changes_nothing_that_was_done_before() -> None:
    assert microcredits_of(WORK, [quote(0, 8, 1500, at=10.0), quote(0, 8, 9000, at=1000.5)], 1000) == 150_000


def test_the_newest_quote_counts_in_whatever_order_they_come() -> None:
    quotes = [quote(0, 8, 2000, at=1.0), quote(0, 8, 1200, at=2.0)]
    assert microcredits_of(WORK, quotes, 1000) == microcredits_of(WORK, quotes[::-1], 1000) == 120_000


def test_a_range_of_several_leases_is_paid_at_the_mean_of_its_experts() -> None:
    assert microcredits_of(WORK, [quote(0, 2, 2000), quote(6, 20, 1400)], 1000) == 100 * (4000 + 4000 + 2800) // 8


def test_rounding_is_down_and_once_for_each_receipt() -> None:
    assert microcredits_of(replace(WORK, row_experts=1), [quote(0, 1, 1007)], 1000) == 1000
    assert microcredits_of(replace(WORK, row_experts=8), [quote(0, 1, 1007)], 1000) == 8007


def test_a_rate_of_zero_makes_no_event() -> None:
    assert events("b:1", [Priced(WORK, 0), Priced(LIE, 0)], ACCOUNTS) == []


def test_a_node_without_account_is_refused() -> None:
    with pytest.raises(LedgerError, match="node n9 has no account"):
        events("b:1", [Priced(replace(WORK, node_id="n9"), 5)], ACCOUNTS)


receipts = st.builds(
    WorkReceipt,
    node_id=st.sampled_from(sorted(ACCOUNTS)),
    fingerprint=st.just(MODEL),
    layer=st.integers(1, 3),
    start=st.integers(0, 7),
    stop=st.integers(8, 64),
    row_experts=st.integers(1, MOST_ROW_EXPERTS),
    at=st.floats(0, 1e9),
    reason=st.sampled_from(["", "", "a lie", "another lie"]),
)
quotes = st.lists(
    st.builds(
        quote,
        st.integers(0, 7),
        st.integers(8, 64),
        st.integers(0, 10**5),
        at=st.floats(0, 1e9),
        layer=st.integers(1, 3),
    ),
    max_size=5,
)


@settings(max_examples=100, deadline=None)
@given(work=st.lists(receipts, max_size=12), quoted=st.dictionaries(st.sampled_from(sorted(ACCOUNTS)), quotes))
def test_every_event_sums_to_zero_and_owners_get_what_was_verified(
    work: list[WorkReceipt], quoted: dict[str, list[Quote]]
) -> None:
    priced = price(WorkBatch("b", tuple(work)), quoted, base_rate=1000)
    found = events("b", priced, ACCOUNTS)
    for event in found:
        check(event)
        assert all(amount > 0 for account, amount in event.postings.items() if account != TREASURY)
    owners = sum(
        amount for event in found for account, amount in event.postings.items() if account.startswith("owner:")
    )
    withheld = sum(event.postings.get(WITHHELD, 0) for event in found)
    assert owners == sum(item.microcredits for item in priced if not item.receipt.reason)
    assert withheld == sum(item.microcredits for item in priced if item.receipt.reason)


@settings(max_examples=100, deadline=None)
@given(work=receipts, quoted=quotes)
def test_pay_lies_between_the_lowest_and_the_highest_rate(work: WorkReceipt, quoted: list[Quote]) -> None:
    rates = [1000, *(item.microcredits_per_row for item in quoted)]
    pay = microcredits_of(work, quoted, 1000)
    assert min(rates) * work.row_experts <= pay <= max(rates) * work.row_experts


def test_an_unbalanced_event_is_refused() -> None:
    with pytest.raises(LedgerError, match="sum to 1, not to zero"):
        make_event("e", EntryType.EARNED, [("owner:a", 5), (TREASURY, -4)])


@pytest.mark.parametrize("amount", [1 << 62, 0.5, True])
def test_an_amount_is_a_whole_number_that_sql_can_hold(amount: int) -> None:
    with pytest.raises(LedgerError, match="not a valid amount"):
        check(Event("e", EntryType.EARNED, {"owner:a": amount, TREASURY: -1}))


def test_a_reversal_is_undone_by_no_further_reversal() -> None:
    event = make_event("e", EntryType.EARNED, [("owner:a", 5), (TREASURY, -5)])
    undone = reversal(event, "twice counted")
    assert undone.postings == {"owner:a": -5, TREASURY: 5}
    with pytest.raises(LedgerError, match="is a reversal itself"):
        reversal(undone, "no")


@settings(max_examples=50, deadline=None)
@given(work=st.lists(receipts, max_size=4))
def test_a_batch_survives_its_line(work: list[WorkReceipt]) -> None:
    batch = WorkBatch("backbone:7", tuple(work))
    line = batch.to_json()
    assert "\n" not in line
    assert WorkBatch.from_json(line) == batch
    assert WorkBatch.from_json(line).digest == batch.digest


@pytest.mark.parametrize(
    "changes",
    [
        {"node_id": ""},
        {"node_id": "n" * 65},
        {"row_experts": 0},
        {"row_experts": -5},
        {"row_experts": 1.5},
        {"row_experts": MOST_ROW_EXPERTS + 1},
        {"start": 8},
        {"stop": 1 << 20},
        {"layer": -1},
        {"at": float("nan")},
        {"reason": "r" * 201},
    ],
)
def test_what_cannot_be_a_receipt_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(WorkError, match="receipt of node"):
        replace(WORK, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", '{"batch_id": "b", "receipts": [{}]}', '{"batch_id": "", "receipts": []}']
)
def test_what_cannot_be_a_batch_is_refused(line: str) -> None:
    with pytest.raises(WorkError):
        WorkBatch.from_json(line)
