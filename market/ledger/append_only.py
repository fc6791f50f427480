"""Rows that are written once. The ledger's models inherit from `AppendOnly`; through the ORM nothing changes them.

A correction is a further event (`market.ledger.posting.reverse`), never an update.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, Self, TypeVar

from django.db import models

M = TypeVar("M", bound=models.Model)


class AppendOnlyError(Exception):
    """Somebody tried to change or delete what is written once: a bug of the caller."""


class AppendOnlyQuerySet(models.QuerySet[M]):
    """Reads and inserts; whatever would change rows raises AppendOnlyError."""

    def update(self, **_: Any) -> NoReturn:
        """Never."""
        raise _refusal(self.model, "updated")

    def delete(self) -> NoReturn:
        """Never."""
        raise _refusal(self.model, "deleted")

    def bulk_update(self, *_: Any, **__: Any) -> NoReturn:
        """Never."""
        raise _refusal(self.model, "updated")

    def update_or_create(self, *_: Any, **__: Any) -> NoReturn:
        """Never."""
        raise _refusal(self.model, "updated")

    def bulk_create(self, objs: Any, *args: Any, **options: Any) -> list[M]:
        """Inserts alone; `update_conflicts` is refused."""
        if options.get("update_conflicts"):
            raise _refusal(self.model, "updated")
        return super().bulk_create(objs, *args, **options)


class AppendOnly(models.Model):
    """Base of rows that are inserted and never touched again."""

    objects: ClassVar[models.Manager[Self]] = models.Manager.from_queryset(AppendOnlyQuerySet)()

    class Meta:
        """No table of its own."""

        abstract = True

    def save(self, *args: Any, **options: Any) -> None:
        """Insert. Raises AppendOnlyError for a row that is there already."""
        if not self._state.adding:
            raise _refusal(type(self), "updated")
        options["force_insert"] = True
        super().save(*args, **options)

    def delete(self, *_: Any, **__: Any) -> NoReturn:
        """Never."""
        raise _refusal(type(self), "deleted")


def _refusal(model: type[models.Model], what: str) -> AppendOnlyError:
    return AppendOnlyError(f"rows of {model.__name__} are never {what}: write a further event")
