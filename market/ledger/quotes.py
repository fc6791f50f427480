"""The rates that nodes were quoted with their leases, in SQL: work is paid by them, even after scarcity has changed.

`market.api` records a quote before the volunteer receives its lease; `market.ledger.receipts` reads the quotes for a
batch. A quote that a newer one for the same range has replaced is deleted once no receipt can be as old. Functions
block on SQL and raise django.db.Error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from market.ledger.rewards import Quote
from market.models.work import RateQuote
from market.sql import in_transaction, name_batches

KEPT_S = 30 * 86_400.0


def record_quote(node_id: str, quote: Quote) -> None:
    """Store a rate that a node was quoted."""
    place = {
        "node_id": node_id,
        "fingerprint": quote.fingerprint,
        "layer": quote.layer,
        "start": quote.start,
        "stop": quote.stop,
    }

    def write() -> None:
        RateQuote.objects.filter(**place, at__lt=quote.at - KEPT_S).delete()
        RateQuote.objects.create(**place, microcredits_per_row=quote.microcredits_per_row, at=quote.at)

    in_transaction(write)


def quotes_of(node_ids: Iterable[str]) -> dict[str, list[Quote]]:
    """Return the quotes of these nodes by node, in order of time. Nodes without one are left out."""
    found = defaultdict[str, list[Quote]](list)
    for names in name_batches(node_ids):
        for row in RateQuote.objects.filter(node_id__in=names).order_by("at", "id"):
            quote = Quote(row.fingerprint, row.layer, row.start, row.stop, row.microcredits_per_row, row.at)
            found[row.node_id].append(quote)
    return dict(found)
