"""From receipts to money, pure: what a receipt is worth, and a batch's events (docs/reference/rewards.md).

    rate of an expert    = the newest quote for the node that holds it, given no later than the work; else the base
    rate of a receipt    = mean over the experts of its range
    pay                  = row-experts x rate, rounded down once for each receipt

`market.ledger.receipts` finds quotes and owners in SQL and calls this. The same batch with the same quotes gives the
same events, in whatever order receipts come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from market.ledger.entries import TREASURY, WITHHELD, EntryType, Event, LedgerError, make_event
from market.ledger.work_batch import WorkBatch, WorkReceipt


@dataclass(frozen=True, slots=True)
class Quote:
    """A rate that a node was promised with a lease for experts [start, stop) of a layer."""

    fingerprint: str
    layer: int
    start: int
    stop: int
    microcredits_per_row: int
    at: float  # unix seconds


@dataclass(frozen=True, slots=True)
class Priced:
    """A receipt and what it is worth. When the receipt has a reason, this is what it would have been."""

    receipt: WorkReceipt
    microcredits: int


def microcredits_of(receipt: WorkReceipt, quotes: Iterable[Quote], base_rate: int) -> int:
    """What a receipt is worth. `quotes` are the node's, of any place and time."""
    rates = [base_rate] * (receipt.stop - receipt.start)
    for quote in sorted(quotes, key=lambda quote: (quote.at, quote.microcredits_per_row)):
        if (quote.fingerprint, quote.layer) != (receipt.fingerprint, receipt.layer) or quote.at > receipt.at:
            continue
        first = max(quote.start, receipt.start) - receipt.start
        last = min(quote.stop, receipt.stop) - receipt.start
        if first < last:
            rates[first:last] = [quote.microcredits_per_row] * (last - first)
    return receipt.row_experts * sum(rates) // len(rates)


def price(batch: WorkBatch, quotes: Mapping[str, Sequence[Quote]], base_rate: int) -> list[Priced]:
    """What each receipt of a batch is worth. `quotes` are by node."""
    return [
        Priced(receipt, microcredits_of(receipt, quotes.get(receipt.node_id, ()), base_rate))
        for receipt in batch.receipts
    ]


def events(batch_id: str, priced: Sequence[Priced], accounts: Mapping[str, str]) -> list[Event]:
    """The events of a batch, without those that move nothing. `accounts` are by node. Raises LedgerError."""
    for work in priced:
        if work.receipt.node_id not in accounts:
            raise LedgerError(f"batch {batch_id}: node {work.receipt.node_id} has no account")
    paid = [(accounts[work.receipt.node_id], work.microcredits) for work in priced if not work.receipt.reason]
    unpaid = [(WITHHELD, work.microcredits) for work in priced if work.receipt.reason]
    found = [
        make_event(f"{entry_type}:{batch_id}", entry_type, _from_treasury(postings))
        for entry_type, postings in ((EntryType.EARNED, paid), (EntryType.WITHHELD, unpaid))
    ]
    return [event for event in found if event.postings]


def _from_treasury(postings: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    return [*postings, (TREASURY, -sum(microcredits for _, microcredits in postings))]
