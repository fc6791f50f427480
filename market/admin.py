"""The market's tables in Django's admin: to look at, for staff. Digests of secrets are never shown.

Nothing is changed here: docs/reference/rewards.md and docs/reference/trust.md say how money and trust change, and the
operator's page takes nodes back and releases them.
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
    """Lists and pages without anything to change."""

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
    """Who owns nodes."""

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
    """Days of work."""

    list_display = ("node_id", "day", "layer", "start", "stop", "row_experts", "microcredits", "reason")
    search_fields = ("node_id",)


@admin.register(RateQuote)
class RateQuoteAdmin(LookOnly):
    """What nodes were promised."""

    list_display = ("node_id", "layer", "start", "stop", "microcredits_per_row")
    search_fields = ("node_id",)


@admin.register(NodeTrust)
class NodeTrustAdmin(LookOnly):
    """What is known of nodes' honesty."""

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
    """What moved microcredits."""

    list_display = ("event_id", "entry_type", "note", "at")
    list_filter = ("entry_type",)
    search_fields = ("event_id",)


@admin.register(LedgerEntry)
class LedgerEntryAdmin(LookOnly):
    """Each account's part of an event."""

    list_display = ("event", "account", "microcredits")
    list_select_related = ("event", "account")
    search_fields = ("account__name",)


@admin.register(LedgerBalance)
class LedgerBalanceAdmin(LookOnly):
    """The sum of each account's entries."""

    list_display = ("account", "microcredits")
    list_select_related = ("account",)
    search_fields = ("account__name",)


admin.site.register(LedgerAccount, LookOnly)
admin.site.register(RecordedBatch, LookOnly)
