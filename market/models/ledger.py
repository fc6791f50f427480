"""The ledger's rows in SQL: accounts, events, entries, balances, and the batches that were recorded.

Written by `market.ledger.posting` and `market.ledger.receipts` alone. Events, entries and batches are written once; a
balance is a projection of the entries and can be made anew at any time (`manage.py verify_ledger --rebuild`).
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from market.ledger.append_only import AppendOnly

EVENT_ID_LENGTH = 160
ACCOUNT_NAME_LENGTH = 80


class LedgerAccount(models.Model):
    """Where microcredits can be: `treasury`, `withheld`, `owner:<account>`, or `node:<id>` of a node without owner."""

    name = models.CharField(max_length=ACCOUNT_NAME_LENGTH, unique=True)

    def __str__(self) -> str:
        return self.name


class LedgerEvent(AppendOnly):
    """Something that moved microcredits. `event_id` says what it was, so the same thing is never written twice."""

    event_id = models.CharField(max_length=EVENT_ID_LENGTH, unique=True)
    entry_type = models.CharField(max_length=16)  # market.ledger.entries.EntryType
    note = models.CharField(max_length=200, blank=True)
    at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.event_id} ({self.entry_type})"


class LedgerEntry(AppendOnly):
    """One account's part of an event; the parts of an event sum to zero."""

    event = models.ForeignKey(LedgerEvent, on_delete=models.PROTECT, related_name="entries")
    account = models.ForeignKey(LedgerAccount, on_delete=models.PROTECT, related_name="entries")
    microcredits = models.BigIntegerField()

    class Meta:
        """No account twice in an event, no empty part."""

        constraints: ClassVar = [
            models.UniqueConstraint(fields=["event", "account"], name="ledger_one_entry_each"),
            models.CheckConstraint(condition=~models.Q(microcredits=0), name="ledger_no_empty_entry"),
        ]

    def __str__(self) -> str:
        return f"{self.microcredits:+d}"


class LedgerBalance(models.Model):
    """The sum of an account's entries, kept with every event."""

    account = models.OneToOneField(LedgerAccount, on_delete=models.PROTECT, related_name="balance", primary_key=True)
    microcredits = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return str(self.microcredits)


class RecordedBatch(AppendOnly):
    """A batch of receipts that was recorded: the mark that makes a replay change nothing."""

    batch_id = models.CharField(max_length=EVENT_ID_LENGTH - 20, unique=True)
    digest = models.CharField(max_length=64)  # of what was in it
    at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.batch_id
