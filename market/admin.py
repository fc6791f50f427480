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


@admin.register(Account)
class AccountAdmin(LookOnly):
    """Owners of nodes."""

    list_display = ("public_id", "name", "created", "closed")
    search_fields = ("public_id", "name")


@admin.register(NodeToken)
class NodeTokenAdmin(LookOnly):
    """Nodes."""

    list_display = ("public_id", "name", "scope", "account", "created", "expires", "revoked")
    list_filter = ("scope",)
    list_select_related = ("account",)
    search_fields = ("public_id", "name", "account__public_id")


@admin.register(Invite)
class InviteAdmin(LookOnly):
    """Invites."""

    list_display = ("public_id", "name", "n_left", "created", "expires")
    search_fields = ("public_id", "name")


@admin.register(WorkDay)
class WorkDayAdmin(LookOnly):
    """Days of work and their pay."""

    list_display = ("node_id", "day", "layer", "start", "stop", "row_experts", "microcredits", "reason")
    search_fields = ("node_id",)


@admin.register(RateQuote)
class RateQuoteAdmin(LookOnly):
    """Rates that nodes were quoted with their leases."""

    list_display = ("node_id", "layer", "start", "stop", "microcredits_per_row")
    search_fields = ("node_id",)


@admin.register(NodeTrust)
class NodeTrustAdmin(LookOnly):
    """Standing of nodes."""

    list_display = ("node_id", "verified", "failures", "doubt", "quarantined", "changed")
    list_filter = ("quarantined",)
    search_fields = ("node_id", "evidence_id")


@admin.register(Evidence)
class EvidenceAdmin(LookOnly):
    """Proven wrong answers."""

    list_display = ("evidence_id", "node_id", "at")
    search_fields = ("evidence_id", "node_id")


@admin.register(LedgerEvent)
class LedgerEventAdmin(LookOnly):
    """Events that moved microcredits."""

    list_display = ("event_id", "entry_type", "note", "at")
    list_filter = ("entry_type",)
    search_fields = ("event_id",)


@admin.register(LedgerEntry)
class LedgerEntryAdmin(LookOnly):
    """The postings of events."""

    list_display = ("event", "account", "microcredits")
    list_select_related = ("event", "account")
    search_fields = ("account__name",)


@admin.register(LedgerBalance)
class LedgerBalanceAdmin(LookOnly):
    """Balances of accounts."""

    list_display = ("account", "microcredits")
    list_select_related = ("account",)
    search_fields = ("account__name",)


admin.site.register(LedgerAccount, LookOnly)
admin.site.register(RecordedBatch, LookOnly)
