"""Rates that nodes were promised with their leases, kept in SQL: what their work is paid by, wherever scarcity goes.

`market.api` records one before a volunteer hears of its range; `market.ledger.receipts` looks them up for a batch. A
quote that a newer one for the same range has replaced is dropped once no receipt can be as old. Functions block on SQL
and raise django.db.Error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from market.ledger.rewards import Quote
from market.models.work import RateQuote
from market.sql_retry import MOST_NAMES, in_transaction

KEPT_S = 30 * 86_400.0


def record_quote(node_id: str, quote: Quote) -> None:
    """Keep a rate that a node was promised."""
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
    """All rates that these nodes were promised, by node, in order of time. Nodes without one are left out."""
    wanted, found = sorted(set(node_ids)), defaultdict[str, list[Quote]](list)
    for first in range(0, len(wanted), MOST_NAMES):
        rows = RateQuote.objects.filter(node_id__in=wanted[first : first + MOST_NAMES]).order_by("at", "id")
        for row in rows:
            quote = Quote(row.fingerprint, row.layer, row.start, row.stop, row.microcredits_per_row, row.at)
            found[row.node_id].append(quote)
    return dict(found)
