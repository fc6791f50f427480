"""An owner's rewards: days of work with their pay or the reason for none, nodes and evidence.

Called by `market.ledger.rewards_api`; reads SQL and changes nothing. Answers are plain JSON values (docs/rewards.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.db.models import Q, QuerySet, Sum

from market.errors import MarketError
from market.ledger.entries import node_account, owner_account
from market.ledger.posting import balance
from market.models.nodes import Account, NodeToken
from market.models.work import NodeTrust, WorkDay
from market.nodes.tokens import TokenHolder
from market.nodes.trust_store import evidence_of

MOST_NODES = 1000
MOST_EVIDENCE = 10  # of one node
_EPOCH = date(1970, 1, 1)
_CURSOR = re.compile(r"([0-9]{1,7})\.([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Asker:
    """Whose rewards are shown: an account's with all its nodes, or one node's."""

    account: Account | None
    node: TokenHolder | None = None

    def node_ids(self) -> QuerySet[NodeToken, str]:
        """Return the ids of the nodes, revoked ones included."""
        mine = Q(account=self.account) if self.account is not None else Q(public_id=self.node and self.node.public_id)
        return NodeToken.objects.filter(mine).values_list("public_id", flat=True)


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
    work = WorkDay.objects.filter(node_id__in=asker.node_ids())
    rows = list(_filtered(work, page).order_by("-day", "-id")[: page.limit + 1])
    more = len(rows) > page.limit
    rows = rows[: page.limit]
    return {
        **_whose(asker),
        **_totals(work),
        "items": [_item(row) for row in rows],
        "next": f"{rows[-1].day}.{rows[-1].pk}" if more else None,
        "nodes": _nodes(asker.node_ids()),
    }


def _whose(asker: Asker) -> dict[str, Any]:
    if asker.account is not None:
        name = asker.account.public_id
        return {"scope": "account", "id": name, "balance_microcredits": balance(owner_account(name))}
    if asker.node is None:
        raise MarketError(401, "token_refused", "token: none was given")
    answer = {"scope": "node", "id": asker.node.public_id}
    if asker.node.account_id is None:
        return answer | {"balance_microcredits": balance(node_account(asker.node.public_id))}
    return answer  # an account's balance needs the account's key


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
    at = datetime.fromtimestamp(facts["at"], UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {name: value for name, value in facts.items() if name != "worker_id"} | {"at": at}
