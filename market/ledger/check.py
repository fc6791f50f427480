"""The check of the ledger's invariants. `manage.py verify_ledger` runs it.

Every statement is consistent in itself, so the site may write meanwhile. Nothing here changes a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from django.db import connection
from django.db.models import Count, Max, Q, Sum

from market.ledger.entries import TREASURY, WITHHELD, EntryType
from market.ledger.posting import wrong_balances
from market.models.ledger import LedgerEntry, LedgerEvent, RecordedBatch
from market.models.work import WorkDay

EVENTS_PER_STEP = 10_000
MOST_FINDINGS = 100  # that are listed; all are counted

_ORPHANS = (
    "SELECT entry.id FROM market_ledgerentry entry LEFT JOIN market_ledgerevent event ON event.id = entry.event_id "
    "LEFT JOIN market_ledgeraccount account ON account.id = entry.account_id "
    "WHERE event.id IS NULL OR account.id IS NULL"
)
# the sum of a type of event by entries, and by days of work: in one statement, so that both are of one moment
_DAYS = (
    "SELECT (SELECT COALESCE(SUM(entry.microcredits), 0) FROM market_ledgerentry entry "
    "JOIN market_ledgerevent event ON event.id = entry.event_id "
    "JOIN market_ledgeraccount account ON account.id = entry.account_id "
    "WHERE event.entry_type = %s AND account.name <> %s), "
    "(SELECT COALESCE(SUM(microcredits), 0) FROM market_workday WHERE (reason = '') = (%s = 1))"
)


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """The counts of checked rows, and the findings: none in a sound ledger."""

    n_events: int
    n_entries: int
    n_batches: int
    n_days: int
    n_findings: int
    findings: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        """Whether there is no finding."""
        return self.n_findings == 0


def check_ledger(on_progress: Callable[[int], None] = lambda n_events: None) -> LedgerReport:
    """Check all rows. `on_progress` receives the number of events checked since its last call."""
    found = [*_events(on_progress), *_orphans(), *_balances(), *_days()]
    return LedgerReport(
        n_events=LedgerEvent.objects.count(),
        n_entries=LedgerEntry.objects.count(),
        n_batches=RecordedBatch.objects.count(),
        n_days=WorkDay.objects.count(),
        n_findings=len(found),
        findings=tuple(found[:MOST_FINDINGS]),
    )


def n_events() -> int:
    """Return the number of events that `check_ledger` will check."""
    return LedgerEvent.objects.count()


def _events(on_progress: Callable[[int], None]) -> Iterator[str]:
    """Check that every event sums to zero and has the accounts of its type."""
    last = LedgerEvent.objects.aggregate(last=Max("pk"))["last"] or 0
    for first in range(1, last + 1, EVENTS_PER_STEP):
        rows = (
            LedgerEvent.objects.filter(pk__gte=first, pk__lt=first + EVENTS_PER_STEP)
            .annotate(
                total=Sum("entries__microcredits"),
                n_entries=Count("entries"),
                n_wrong_sign=Count("entries", filter=_wrong_sign()),
            )
            .values_list("event_id", "entry_type", "total", "n_entries", "n_wrong_sign")
            .order_by("pk")
        )
        looked_at = 0
        for event_id, entry_type, total, n_entries, n_wrong_sign in rows:
            looked_at += 1
            if n_entries < 2:
                yield f"event {event_id}: it has {n_entries} entries, at least 2 are needed"
            if total:
                yield f"event {event_id}: its entries sum to {total}, not to zero"
            if entry_type not in set(EntryType):
                yield f"event {event_id}: unknown type {entry_type!r}"
            if n_wrong_sign:
                yield f"event {event_id}: {n_wrong_sign} entries are not allowed for type {entry_type}"
        on_progress(looked_at)


def _wrong_sign() -> Q:
    """Return the condition for entries that their type of event never has."""
    treasury, withheld = Q(entries__account__name=TREASURY), Q(entries__account__name=WITHHELD)
    is_gain = Q(entries__microcredits__gt=0)
    earned = Q(entry_type=EntryType.EARNED) & ((treasury & is_gain) | (~treasury & ~is_gain) | withheld)
    kept = Q(entry_type=EntryType.WITHHELD) & ((treasury & is_gain) | (~treasury & ~(withheld & is_gain)))
    return earned | kept


def _orphans() -> Iterator[str]:
    """Check that every entry has its event and its account."""
    with connection.cursor() as cursor:
        cursor.execute(_ORPHANS)
        for (key,) in cursor.fetchall():
            yield f"entry {key}: its event or its account is missing"


def _balances() -> Iterator[str]:
    """Check that every balance is the sum of its entries."""
    for _, name, total, held in wrong_balances():
        yield f"account {name}: its balance is {held}, its entries sum to {total} (--rebuild corrects it)"


def _days() -> Iterator[str]:
    """Check that the days of work agree with the amounts that the ledger paid and withheld."""
    for entry_type, is_paid in ((EntryType.EARNED, 1), (EntryType.WITHHELD, 0)):
        with connection.cursor() as cursor:
            cursor.execute(_DAYS, [entry_type.value, TREASURY, is_paid])
            entries, days = (int(value) for value in cursor.fetchone())
        if entries != days:
            yield f"{entry_type}: entries sum to {entries}, days of work to {days}"
