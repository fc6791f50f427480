"""The reports of rewards: an owner's days of work, nodes and evidence, its ledger entries, and the leaderboard.

Called by `market.rewards_api`; reads SQL and changes nothing. Answers are plain JSON values
(docs/reference/rewards.md). Accounts are shown only by their public id: names given by owners are often those of their
machines.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from threading import Lock
from typing import Any

from django.db.models import Q, QuerySet, Sum

from market.errors import MarketError
from market.ledger.entries import node_account, owner_account
from market.ledger.posting import balance
from market.models.ledger import LedgerBalance, LedgerEntry
from market.models.nodes import Account, NodeToken
from market.models.work import NodeTrust, WorkDay
from market.nodes.tokens import TokenHolder
from market.nodes.trust_store import evidence_of
from market.schemas import iso
from market.sql import name_batches

MOST_NODES = 1000
MOST_EVIDENCE = 10  # of one node
MOST_EARNERS = 100
REMEMBERED_S = 10.0  # the leaderboard
_LARGEST_KEY = (1 << 63) - 1
_EPOCH = date(1970, 1, 1)
_CURSOR = re.compile(r"([0-9]{1,7})\.([0-9]{1,18})")


Asker = Account | TokenHolder  # an account with all its nodes, or one node


@dataclass(frozen=True, slots=True)
class Page:
    """The days of work to show, the newest first."""

    limit: int = 100
    cursor: str = ""
    since: date | None = None
    until: date | None = None
    node_id: str = ""
    is_paid: bool | None = None


def rewards(asker: Asker, page: Page) -> dict[str, Any]:
    """Answer GET /api/rewards. Raises MarketError 400 for an invalid cursor. Blocks on SQL."""
    work = WorkDay.objects.filter(node_id__in=_node_ids(asker))
    rows = list(_filtered(work, page).order_by("-day", "-id")[: page.limit + 1])
    more = len(rows) > page.limit
    rows = rows[: page.limit]
    return {
        **_whose(asker),
        **_totals(work),
        "items": [_item(row) for row in rows],
        "next": f"{rows[-1].day}.{rows[-1].pk}" if more else None,
        "nodes": _nodes(_node_ids(asker)),
    }


def _node_ids(asker: Asker) -> QuerySet[NodeToken, str]:
    """Return the ids of the asker's nodes, revoked ones included."""
    mine = Q(account=asker) if isinstance(asker, Account) else Q(public_id=asker.public_id)
    return NodeToken.objects.filter(mine).values_list("public_id", flat=True)


def _whose(asker: Asker) -> dict[str, Any]:
    answer = {"scope": "account" if isinstance(asker, Account) else "node", "id": asker.public_id}
    if isinstance(asker, TokenHolder) and asker.account_id is not None:
        return answer  # an account's balance needs the account's key
    return answer | {"balance_microcredits": balance(_ledger_account(asker))}


def _ledger_account(asker: Asker) -> str:
    """Return the asker's ledger account. Raises MarketError 403 for a node that has an owner."""
    if isinstance(asker, Account):
        return owner_account(asker.public_id)
    if asker.account_id is not None:
        raise MarketError(403, "account_needed", "an account owns this node and has its entries; use the account's key")
    return node_account(asker.public_id)


def _totals(work: QuerySet[WorkDay]) -> dict[str, int]:
    """Return the sums over all days, not only those of the page."""
    paid, unpaid = Q(reason=""), ~Q(reason="")
    sums = work.aggregate(
        earned_microcredits=Sum("microcredits", filter=paid),
        paid_row_experts=Sum("row_experts", filter=paid),
        withheld_microcredits=Sum("microcredits", filter=unpaid),
        unpaid_row_experts=Sum("row_experts", filter=unpaid),
    )
    return {name: int(value or 0) for name, value in sums.items()}


def _filtered(work: QuerySet[WorkDay], page: Page) -> QuerySet[WorkDay]:
    if page.node_id:
        work = work.filter(node_id=page.node_id)
    if page.since is not None:
        work = work.filter(day__gte=max(0, (page.since - _EPOCH).days))
    if page.until is not None:
        work = work.filter(day__lte=max(0, (page.until - _EPOCH).days))
    if page.is_paid is not None:
        work = work.filter(reason="") if page.is_paid else work.exclude(reason="")
    if page.cursor:
        form = _CURSOR.fullmatch(page.cursor)
        if form is None:
            raise MarketError(400, "malformed", f"cursor {page.cursor[:40]!r}: send the `next` of an answer")
        day, key = int(form[1]), int(form[2])
        work = work.filter(Q(day__lt=day) | Q(day=day, id__lt=key))
    return work


def _item(row: WorkDay) -> dict[str, Any]:
    return {
        "node_id": row.node_id,
        "fingerprint": row.fingerprint,
        "layer": row.layer,
        "experts": [row.start, row.stop],
        "day": (_EPOCH + timedelta(days=row.day)).isoformat(),
        "row_experts": row.row_experts,
        "microcredits": row.microcredits,
        "paid": not row.reason,
        "reason": row.reason,
    }


def _nodes(node_ids: Iterable[str]) -> list[dict[str, Any]]:
    """Return the standing of the nodes that backbones know, those in quarantine first."""
    rows = list(NodeTrust.objects.filter(node_id__in=node_ids).order_by("-quarantined", "-changed")[:MOST_NODES])
    evidence = evidence_of([row.node_id for row in rows if row.failures], MOST_EVIDENCE)
    return [
        {
            "node_id": row.node_id,
            "verified_row_experts": row.verified,
            "failures": row.failures,
            "quarantined": row.quarantined,
            "evidence": [_evidence(facts) for facts in evidence.get(row.node_id, [])],
        }
        for row in rows
    ]


def _evidence(facts: Any) -> dict[str, Any]:
    at = iso(datetime.fromtimestamp(facts["at"], UTC))
    return {name: value for name, value in facts.items() if name != "worker_id"} | {"at": at}


def entries(asker: Asker, limit: int, cursor: str = "") -> dict[str, Any]:
    """Answer GET /api/rewards/entries, the newest first.

    Raises MarketError 400 for an invalid cursor, and 403 for a node that has an owner. Blocks on SQL.
    """
    found = LedgerEntry.objects.filter(account__name=_ledger_account(asker))
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
                "at": iso(row.event.at),
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
        {"rank": rank, "kind": kind, "id": name, "microcredits": microcredits, "row_experts": work.get(name, 0)}
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
