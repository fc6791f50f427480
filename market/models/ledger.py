"""The ledger's rows in SQL: accounts, events, entries, balances, and the batches that were recorded.

Written only by `market.ledger.posting` and `market.ledger.receipts`. Events, entries and batches are append-only: a
correction is a further event (`market.ledger.posting.reverse`). A balance is a projection of the entries and can be
rebuilt at any time (`manage.py verify_ledger --rebuild`).
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, Self, TypeVar

from django.db import models

EVENT_ID_LENGTH = 160
ACCOUNT_NAME_LENGTH = 80

M = TypeVar("M", bound=models.Model)


class AppendOnlyError(Exception):
    """A caller tried to change or delete an append-only row: a bug."""


class AppendOnlyQuerySet(models.QuerySet[M]):
    """Reads and inserts; methods that change rows raise AppendOnlyError."""

    def update(self, **_: Any) -> NoReturn:
        """Raise AppendOnlyError."""
        raise _refusal(self.model, "updated")

    def delete(self) -> NoReturn:
        """Raise AppendOnlyError."""
        raise _refusal(self.model, "deleted")

    def bulk_update(self, *_: Any, **__: Any) -> NoReturn:
        """Raise AppendOnlyError."""
        raise _refusal(self.model, "updated")

    def update_or_create(self, *_: Any, **__: Any) -> NoReturn:
        """Raise AppendOnlyError."""
        raise _refusal(self.model, "updated")

    def bulk_create(self, objs: Any, *args: Any, **options: Any) -> list[M]:
        """Insert rows. Raises AppendOnlyError for `update_conflicts`."""
        if options.get("update_conflicts"):
            raise _refusal(self.model, "updated")
        return super().bulk_create(objs, *args, **options)


class AppendOnly(models.Model):
    """Base of rows that are inserted and never changed. The ORM refuses changes; SQL does not."""

    objects: ClassVar[models.Manager[Self]] = models.Manager.from_queryset(AppendOnlyQuerySet)()

    class Meta:
        """No table of its own."""

        abstract = True

    def save(self, *args: Any, **options: Any) -> None:
        """Insert the row. Raises AppendOnlyError when it is stored already."""
        if not self._state.adding:
            raise _refusal(type(self), "updated")
        options["force_insert"] = True
        super().save(*args, **options)

    def delete(self, *_: Any, **__: Any) -> NoReturn:
        """Raise AppendOnlyError."""
        raise _refusal(type(self), "deleted")


def _refusal(model: type[models.Model], what: str) -> AppendOnlyError:
    return AppendOnlyError(f"rows of {model.__name__} are never {what}: write a further event")


class LedgerAccount(models.Model):
    """An account of the ledger: `treasury`, `withheld`, `owner:<account>`, or `node:<id>` of a node without owner."""

    name = models.CharField(max_length=ACCOUNT_NAME_LENGTH, unique=True)

    def __str__(self) -> str:
        return self.name


class LedgerEvent(AppendOnly):
    """An event that moved microcredits. `event_id` is derived from its cause, so it is never written twice."""

    event_id = models.CharField(max_length=EVENT_ID_LENGTH, unique=True)
    entry_type = models.CharField(max_length=16)  # market.ledger.entries.EntryType
    note = models.CharField(max_length=200, blank=True)
    at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.event_id} ({self.entry_type})"


class LedgerEntry(AppendOnly):
    """One posting of an event; the entries of an event sum to zero."""

    event = models.ForeignKey(LedgerEvent, on_delete=models.PROTECT, related_name="entries")
    account = models.ForeignKey(LedgerAccount, on_delete=models.PROTECT, related_name="entries")
    microcredits = models.BigIntegerField()

    class Meta:
        """No account twice in an event, no zero entry."""

        constraints: ClassVar = [
            models.UniqueConstraint(fields=["event", "account"], name="ledger_one_entry_each"),
            models.CheckConstraint(condition=~models.Q(microcredits=0), name="ledger_no_empty_entry"),
        ]

    def __str__(self) -> str:
        return f"{self.microcredits:+d}"


class LedgerBalance(models.Model):
    """The sum of an account's entries, updated with every event."""

    account = models.OneToOneField(LedgerAccount, on_delete=models.PROTECT, related_name="balance", primary_key=True)
    microcredits = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return str(self.microcredits)


class RecordedBatch(AppendOnly):
    """A batch of receipts that was recorded. A replay finds it and changes nothing."""

    batch_id = models.CharField(max_length=EVENT_ID_LENGTH - 20, unique=True)
    digest = models.CharField(max_length=64)  # of its receipts
    at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.batch_id
