"""The ledger as people read it: an account's entries page by page, and the accounts that have earned the most.

Called by `market.ledger.rewards_api`; reads SQL and changes nothing. Accounts are shown only by their public id: names
given by owners are often those of their machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any

from django.db.models import Q, Sum

from market.errors import MarketError
from market.ledger.entries import node_account, owner_account
from market.models.ledger import LedgerBalance, LedgerEntry
from market.models.nodes import NodeToken
from market.models.work import WorkDay
from market.sql import name_batches

MOST_EARNERS = 100
REMEMBERED_S = 10.0
_LARGEST_KEY = (1 << 63) - 1


def account_name(account_id: str = "", node_id: str = "", owner_of_node: str = "") -> str:
    """Return the ledger account of an account, else of a node. Raises MarketError 403 for a node that has an owner."""
    if account_id:
        return owner_account(account_id)
    if owner_of_node:
        raise MarketError(403, "account_needed", "an account owns this node and has its entries; use the account's key")
    return node_account(node_id)


def entries(account: str, limit: int, cursor: str = "") -> dict[str, Any]:
    """Answer GET /api/rewards/entries, the newest first. Raises MarketError 400 for an invalid cursor."""
    found = LedgerEntry.objects.filter(account__name=account)
    if cursor:
        if not (cursor.isascii() and cursor.isdigit() and int(cursor) <= _LARGEST_KEY):
            raise MarketError(400, "malformed", f"cursor {cursor[:40]!r}: send the `next` of an answer")
        found = found.filter(id__lt=int(cursor))
    rows = list(found.select_related("event").order_by("-id")[: limit + 1])
    return {
        "items": [
            {
                "event": row.event.event_id,
                "type": row.event.entry_type,
                "microcredits": row.microcredits,
                "note": row.event.note,
                "at": row.event.at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            }
            for row in rows[:limit]
        ],
        "next": str(rows[limit - 1].pk) if len(rows) > limit else None,
    }


def top_earners() -> list[dict[str, Any]]:
    """Return the accounts with the largest balances: {rank, kind, id, microcredits, row_experts}. Blocks on SQL."""
    rows = LedgerBalance.objects.filter(
        Q(account__name__startswith="owner:") | Q(account__name__startswith="node:"), microcredits__gt=0
    ).order_by("-microcredits", "account__name")[:MOST_EARNERS]
    found = [(*_parts(name), amount) for name, amount in rows.values_list("account__name", "microcredits")]
    work = _row_experts([name for kind, name, _ in found if kind == "account"])
    work |= _of_nodes({name: name for kind, name, _ in found if kind == "node"})
    return [
        {
            "rank": rank,
            "kind": kind,
            "id": name,
            "microcredits": microcredits,
            "row_experts": work.get(name, 0),
        }
        for rank, (kind, name, microcredits) in enumerate(found, 1)
    ]


def _parts(name: str) -> tuple[str, str]:
    kind, _, public_id = name.partition(":")
    return ("account" if kind == "owner" else "node"), public_id


def _row_experts(account_ids: list[str]) -> dict[str, int]:
    """Return the paid row-experts by account."""
    nodes = NodeToken.objects.filter(account__public_id__in=account_ids)
    return _of_nodes({node: owner for node, owner in nodes.values_list("public_id", "account__public_id") if owner})


def _of_nodes(owners: dict[str, str]) -> dict[str, int]:
    """Return the paid row-experts by owner; `owners` are by node."""
    sums: dict[str, int] = {}
    for names in name_batches(owners):
        paid = WorkDay.objects.filter(node_id__in=names, reason="")
        for node_id, row_experts in paid.values_list("node_id").annotate(Sum("row_experts")):
            sums[owners[node_id]] = sums.get(owners[node_id], 0) + int(row_experts)
    return sums


class Leaderboard:
    """A cache of `top_earners`, which reads SQL at most once in REMEMBERED_S. Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._until = float("-inf")
        self._earners: list[dict[str, Any]] = []

    def top(self, limit: int) -> dict[str, Any]:
        """Answer GET /api/leaderboard. Blocks on SQL when the cache has expired."""
        with self._lock:
            if self._clock() >= self._until:
                self._earners = top_earners()
                self._until = self._clock() + REMEMBERED_S
            return {"items": self._earners[:limit]}
