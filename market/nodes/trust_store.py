"""The standing of nodes in SQL, which outlives restarts of backbones, and the evidence of proven lies.

`backbone.process.trust_keeper` loads and saves for the engine; GET /api/rewards shows it to owners; an operator ends a
quarantine with `release`. Several backbones may save the same node: `merge` keeps proven lies that the saving backbone
does not know. Functions block on SQL and raise django.db.Error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvasir.errors import ConfigError
from market.models.work import Evidence, NodeTrust
from market.sql import in_transaction, name_batches


@dataclass(frozen=True, slots=True)
class SavedTrust:
    """A node's standing. `backbone.engine.trust.standing` defines the fields."""

    verified: int = 0
    failures: int = 0
    doubt: int = 0
    quarantined: bool = False
    evidence_id: str = ""


def load(node_id: str) -> SavedTrust | None:
    """Return the standing that was saved last, or None for a new node."""
    row = NodeTrust.objects.filter(node_id=node_id).first()
    return None if row is None else _of(row)


def save(node_id: str, state: SavedTrust, evidence: Mapping[str, Any] | None = None) -> SavedTrust:
    """Merge a standing into the stored one, and store the evidence that changed it. Returns the stored standing."""

    def write() -> SavedTrust:
        if evidence is not None:
            _add_evidence(node_id, evidence)
        row = NodeTrust.objects.select_for_update().filter(node_id=node_id).first()
        kept = state if row is None else merge(_of(row), state)
        _write(node_id, kept)
        return kept

    return in_transaction(write)


def merge(kept: SavedTrust, state: SavedTrust) -> SavedTrust:
    """Return the standing after a backbone with `state` saved over `kept`.

    The side with more proven lies wins. If both have the same number, a release wins, else the larger sum of verified
    work: both backbones began with the stored standing.
    """
    if state.failures != kept.failures:
        return max(state, kept, key=lambda known: known.failures)
    if kept.quarantined != state.quarantined:
        return kept if not kept.quarantined else state
    return replace(state, verified=max(kept.verified, state.verified))


def release(node_id: str) -> SavedTrust:
    """End a quarantine: the node starts again as unproven. Backbones learn of it within seconds.

    Raises ConfigError unless the node is in quarantine.
    """

    def write() -> SavedTrust:
        row = NodeTrust.objects.select_for_update().filter(node_id=node_id).first()
        if row is None or not row.quarantined:
            raise ConfigError(f"node {node_id!r} is not in quarantine")
        kept = replace(_of(row), verified=0, doubt=0, quarantined=False)
        _write(node_id, kept)
        return kept

    return in_transaction(write)


def trust_of(node_ids: Iterable[str]) -> dict[str, SavedTrust]:
    """Return the standing of some nodes; new ones are left out."""
    rows = (row for names in name_batches(node_ids) for row in NodeTrust.objects.filter(node_id__in=names))
    return {row.node_id: _of(row) for row in rows}


def evidence_of(node_ids: Iterable[str], most: int) -> dict[str, list[Mapping[str, Any]]]:
    """Return the newest evidence against each of some nodes, at most `most` items each."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for names in name_batches(node_ids):
        for row in Evidence.objects.filter(node_id__in=names).order_by("-at", "-id"):
            known = found.setdefault(row.node_id, [])
            if len(known) < most:
                known.append(row.facts)
    return found


def lies_since(node_ids: Iterable[str], since: float) -> dict[str, str]:
    """Return the lies of some nodes proven at Unix second `since` or later: node by id of the evidence."""
    found: dict[str, str] = {}
    for names in name_batches(node_ids):
        found |= dict(Evidence.objects.filter(node_id__in=names, at__gte=since).values_list("evidence_id", "node_id"))
    return found


def _add_evidence(node_id: str, facts: Mapping[str, Any]) -> None:
    evidence_id = str(facts["evidence_id"])
    if not Evidence.objects.filter(evidence_id=evidence_id).exists():
        Evidence.objects.create(evidence_id=evidence_id, node_id=node_id, at=float(facts["at"]), facts=dict(facts))


def _write(node_id: str, state: SavedTrust) -> None:
    NodeTrust.objects.update_or_create(
        node_id=node_id,
        defaults={
            "verified": state.verified,
            "failures": state.failures,
            "doubt": state.doubt,
            "quarantined": state.quarantined,
            "evidence_id": state.evidence_id,
        },
    )


def _of(row: NodeTrust) -> SavedTrust:
    return SavedTrust(row.verified, row.failures, row.doubt, row.quarantined, row.evidence_id)
