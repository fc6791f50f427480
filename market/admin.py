"""The market's tables in Django's admin, read-only, for staff. Digests of secrets are never shown.

Money and trust change only as docs/reference/rewards.md and docs/reference/trust.md describe; the operator's page
revokes and releases nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db import models
from django.http import HttpRequest

from market.models.ledger import LedgerAccount, LedgerBalance, LedgerEntry, LedgerEvent, RecordedBatch
from market.models.nodes import Account, Invite, NodeToken
from market.models.work import Evidence, NodeTrust, RateQuote, WorkDay

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:  # Django's own takes no parameter
    _ModelAdmin = admin.ModelAdmin


class LookOnly(_ModelAdmin):
    """Read-only lists and pages."""

    exclude = ("digest",)
    list_per_page = 50
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False


def _show(model: type[models.Model], *columns: str, search: tuple[str, ...] = (), **options: tuple[str, ...]) -> None:
    """Register a model with the columns of its list, and the fields to search."""
    admin.site.register(model, LookOnly, list_display=columns, search_fields=search, **options)


_show(Account, "public_id", "name", "created", "closed", search=("public_id", "name"))
_show(
    NodeToken, "public_id", "name", "scope", "account", "created", "expires", "revoked",
    search=("public_id", "name", "account__public_id"), list_filter=("scope",), list_select_related=("account",),
)  # fmt: skip
_show(Invite, "public_id", "name", "n_left", "created", "expires", search=("public_id", "name"))
_show(
    WorkDay, "node_id", "day", "layer", "start", "stop", "row_experts", "microcredits", "reason",
    search=("node_id",),
)  # fmt: skip
_show(RateQuote, "node_id", "layer", "start", "stop", "microcredits_per_row", search=("node_id",))
_show(
    NodeTrust, "node_id", "verified", "failures", "doubt", "quarantined", "changed",
    search=("node_id", "evidence_id"), list_filter=("quarantined",),
)  # fmt: skip
_show(Evidence, "evidence_id", "node_id", "at", search=("evidence_id", "node_id"))
_show(LedgerEvent, "event_id", "entry_type", "note", "at", search=("event_id",), list_filter=("entry_type",))
_show(
    LedgerEntry, "event", "account", "microcredits",
    search=("account__name",), list_select_related=("event", "account"),
)  # fmt: skip
_show(LedgerBalance, "account", "microcredits", search=("account__name",), list_select_related=("account",))
admin.site.register((LedgerAccount, RecordedBatch), LookOnly)
