"""The double-entry ledger in SQL: post events, read balances, rebuild balances. Nothing else writes its tables.

Called by `market.ledger.receipts`, `market.ledger.rewards_report` and `manage.py verify_ledger`. Functions block on
SQL. `post` runs inside the caller's transaction, so that an event and its cause are written together or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection, transaction
from django.db.models import Sum
from django.db.models.functions import Coalesce

from market.ledger.entries import EntryType, Event, LedgerError, check, reversal
from market.models.ledger import LedgerAccount, LedgerBalance, LedgerEntry, LedgerEvent
from market.sql import in_transaction

_ADD = (
    "INSERT INTO market_ledgerbalance (account_id, microcredits) VALUES (%s, %s) ON CONFLICT (account_id) "
    "DO UPDATE SET microcredits = market_ledgerbalance.microcredits + excluded.microcredits"
)


def post(event: Event) -> bool:
    """Write an event with its entries, and update the balances. Returns False when it was written before.

    Raises LedgerError for an event that does not sum to zero, or whose id was written with other postings.
    """
    check(event)
    before = stored_event(event.event_id)
    if before is not None:
        if dict(before.postings) != dict(event.postings) or before.entry_type is not event.entry_type:
            raise LedgerError(f"event {event.event_id} was written before, with other postings")
        return False
    with transaction.atomic():
        row = LedgerEvent.objects.create(event_id=event.event_id, entry_type=event.entry_type, note=event.note)
        accounts = _accounts(event.postings)
        LedgerEntry.objects.bulk_create(
            LedgerEntry(event=row, account_id=accounts[name], microcredits=microcredits)
            for name, microcredits in event.postings.items()
        )
        moved = sorted((accounts[name], microcredits) for name, microcredits in event.postings.items())
        with connection.cursor() as cursor:
            cursor.executemany(_ADD, moved)
    return True


def stored_event(event_id: str) -> Event | None:
    """Return an event as it was written, or None."""
    row = LedgerEvent.objects.filter(event_id=event_id).first()
    if row is None:
        return None
    postings = dict(row.entries.values_list("account__name", "microcredits"))
    return Event(row.event_id, EntryType(row.entry_type), postings, row.note)


def reverse(event_id: str, reason: str) -> bool:
    """Reverse an event by a further one. Returns False if that was done before. Raises LedgerError if it is unknown."""

    def undo() -> bool:
        event = stored_event(event_id)
        if event is None:
            raise LedgerError(f"there is no event {event_id!r}")
        return post(reversal(event, reason))

    return in_transaction(undo)


def balance(account: str) -> int:
    """Return the microcredits of an account by name; 0 for an unknown one."""
    return LedgerBalance.objects.filter(account__name=account).values_list("microcredits", flat=True).first() or 0


def rebuild_balances() -> int:
    """Recompute wrong balances from the entries. Returns how many were wrong."""

    def rebuild() -> int:
        wrong = wrong_balances()
        for account_id, _, expected, _ in wrong:
            LedgerBalance.objects.update_or_create(account_id=account_id, defaults={"microcredits": expected})
        return len(wrong)

    return in_transaction(rebuild)


def wrong_balances() -> list[tuple[int, str, int, int]]:
    """Return accounts whose balance is not the sum of their entries: (id, name, sum, balance), by one statement."""
    rows = LedgerAccount.objects.annotate(total=Coalesce(Sum("entries__microcredits"), 0)).values_list(
        "id", "name", "total", "balance__microcredits"
    )
    return [(key, name, int(total), held or 0) for key, name, total, held in rows if int(total) != (held or 0)]


def _accounts(names: Iterable[str]) -> dict[str, int]:
    """Return the ids of accounts by name; missing accounts are created."""
    wanted = sorted(names)
    known = dict(LedgerAccount.objects.filter(name__in=wanted).values_list("name", "id"))
    missing = [LedgerAccount(name=name) for name in wanted if name not in known]
    if missing:
        LedgerAccount.objects.bulk_create(missing, ignore_conflicts=True)
        known = dict(LedgerAccount.objects.filter(name__in=wanted).values_list("name", "id"))
    return known
