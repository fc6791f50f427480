"""From receipts to credits, pure: the worth of a receipt, and the events of a batch (docs/reference/rewards.md).

    rate of an expert    = the newest quote for the node that holds it, not later than the work; else the base
    rate of a receipt    = mean over the experts of its range
    pay                  = row-experts x rate, rounded down once for each receipt

`market.ledger.receipts` reads quotes and owners from SQL and calls this. The same batch with the same quotes gives the
same events, independent of the order of receipts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from market.ledger.entries import TREASURY, WITHHELD, EntryType, Event, LedgerError, make_event
from market.ledger.work_batch import WorkBatch, WorkReceipt


@dataclass(frozen=True, slots=True)
class Quote:
    """The rate of a node's lease for experts [start, stop) of a layer."""

    fingerprint: str
    layer: int
    start: int
    stop: int
    microcredits_per_row: int
    at: float  # Unix seconds


@dataclass(frozen=True, slots=True)
class Priced:
    """A receipt and its worth, paid unless the receipt has a reason."""

    receipt: WorkReceipt
    microcredits: int


def microcredits_of(receipt: WorkReceipt, quotes: Iterable[Quote], base_rate: int) -> int:
    """Return the worth of a receipt. `quotes` are those of its node, for any range and time."""
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
    """Return each receipt of a batch with its worth. `quotes` are by node."""
    return [
        Priced(receipt, microcredits_of(receipt, quotes.get(receipt.node_id, ()), base_rate))
        for receipt in batch.receipts
    ]


def events(batch_id: str, priced: Sequence[Priced], accounts: Mapping[str, str]) -> list[Event]:
    """Return the events of a batch, without empty ones. `accounts` are by node. Raises LedgerError."""
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
