"""The facts of the operator's page, from SQL, Redis and the model's file. Called by `frontend.views` in a thread.

It changes nothing. Lists are bounded: pages of nodes, the newest quarantines, the newest evidence of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.core.paginator import Page, Paginator
from django.db.models import Q
from django.utils import timezone
from redis.exceptions import RedisError

from frontend.live.readings import Readings, read_swarm
from kvasir.byte_sizes import format_size
from market.coverage.model_facts import site_model
from market.coverage.pulse import WorkerPulse
from market.coverage.reading import WorkerCoverage
from market.errors import MarketError
from market.models.nodes import NodeToken
from market.models.work import NodeTrust
from market.nodes.tokens import TokenScope
from market.nodes.trust_store import SavedTrust, evidence_of, trust_of
from market.service import service

NODES_PER_PAGE = 50
MOST_QUARANTINED = 100
MOST_EVIDENCE = 5
LONGEST_SEARCH = 100
_NEW = SavedTrust()


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node: its token, its standing and its present work."""

    token: NodeToken
    trust: SavedTrust
    is_live: bool
    n_experts: int
    rows_per_s: float

    @property
    def state(self) -> str:
        """The first that applies of revoked, expired, quarantined, live or away; empty for a backbone."""
        if self.token.revoked is not None:
            return "revoked"
        if self.token.expires is not None and self.token.expires <= timezone.now():
            return "expired"
        if self.trust.quarantined:
            return "quarantined"
        if self.token.scope != TokenScope.WORKER:
            return ""
        return "live" if self.is_live else "away"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A node in quarantine with its evidence, the newest first."""

    node_id: str
    failures: int
    since: datetime
    evidence: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Consecutive layers of the same types and sizes. Sizes are formatted."""

    first: int
    last: int
    n_expert: int
    types: str
    expert_size: str
    layer_size: str
    kernel: str


def live_readings() -> tuple[Readings | None, str]:
    """Return the swarm now and an empty string, or None and the reason."""
    try:
        return read_swarm(service()), ""
    except MarketError as error:
        return None, str(error)
    except RedisError as error:
        return None, f"{type(error).__name__}: {error}"


def nodes_page(search: str, number: str, readings: Readings | None) -> tuple[Page[Any], list[NodeRow]]:
    """Return a page of nodes whose id, name or account matches `search`: revoked ones last, the newest first."""
    wanted = search.strip()[:LONGEST_SEARCH]
    nodes = NodeToken.objects.select_related("account").annotate(is_over=Q(revoked__isnull=False))
    found = nodes.order_by("is_over", "-created", "-id")
    if wanted:
        found = found.filter(
            Q(public_id__startswith=wanted) | Q(name__icontains=wanted) | Q(account__public_id__startswith=wanted)
        )
    page = Paginator(found, NODES_PER_PAGE).get_page(number)
    tokens = list(page.object_list)
    trust = trust_of(token.public_id for token in tokens)
    covering = {} if readings is None else {item.worker_id: item for item in readings.coverage.workers}
    seen = {} if readings is None else readings.by_node
    return page, [
        _row(token, trust.get(token.public_id, _NEW), covering.get(token.public_id), seen.get(token.public_id))
        for token in tokens
    ]


def quarantined_nodes() -> list[Quarantined]:
    """Return the nodes in quarantine, the newest first."""
    rows = list(NodeTrust.objects.filter(quarantined=True).order_by("-changed")[:MOST_QUARANTINED])
    evidence = evidence_of([row.node_id for row in rows], MOST_EVIDENCE)
    return [
        Quarantined(row.node_id, row.failures, row.changed, [_shown(item) for item in evidence.get(row.node_id, [])])
        for row in rows
    ]


def model_facts() -> dict[str, Any]:
    """Return the model and the settings of its slices, or {"problem": the reason}."""
    try:
        model = site_model()
    except MarketError as error:
        return {"problem": str(error)}
    card = model.card
    experts = sum(size * card.n_expert for size in model.facts.expert_bytes)
    return {
        "name": model.facts.name,
        "fingerprint": card.fingerprint,
        "architecture": card.architecture,
        "n_layer": card.n_layer,
        "n_moe_layer": len(card.layers),
        "n_expert": card.n_expert,
        "n_used": card.n_used,
        "d_model": card.d_model,
        "d_ff": card.d_ff,
        "file_size": format_size(card.n_bytes),
        "expert_size": format_size(experts),
        "layers": _groups(model.facts.kernels, card),
        "downloads_of_a_node": settings.KVASIR_SLICE_DOWNLOADS,
        "downloads_of_all": settings.KVASIR_SLICE_DOWNLOADS_ALL,
        "bytes_per_s": format_size(settings.KVASIR_SLICE_BYTES_PER_S) if settings.KVASIR_SLICE_BYTES_PER_S else "",
        "origin": settings.KVASIR_ORIGIN_URL,
    }


def _row(token: NodeToken, trust: SavedTrust, covers: WorkerCoverage | None, seen: WorkerPulse | None) -> NodeRow:
    return NodeRow(
        token,
        trust,
        is_live=covers is not None or seen is not None,
        n_experts=0 if covers is None else sum(item.n_experts for item in covers.ranges),
        rows_per_s=0.0 if seen is None else seen.rows_per_s,
    )


def _shown(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return evidence with a datetime in place of Unix seconds."""
    return {**facts, "at": datetime.fromtimestamp(float(facts["at"]), UTC)}


def _groups(kernels: Sequence[str], card: Any) -> list[LayerGroup]:
    groups: list[LayerGroup] = []
    for layer in card.layers:
        here = LayerGroup(
            layer.layer,
            layer.layer,
            card.n_expert,
            _types(layer.gate_type.name, layer.up_type.name, layer.down_type.name),
            format_size(layer.expert_bytes),
            format_size(layer.expert_bytes * card.n_expert),
            kernels[layer.layer] if kernels else "",
        )
        before = groups[-1] if groups else None
        if before is not None and before == replace(here, first=before.first, last=layer.layer - 1):
            groups[-1] = replace(here, first=before.first)
        else:
            groups.append(here)
    return groups


def _types(gate: str, up: str, down: str) -> str:
    names: Iterable[str] = (gate, down) if gate == up else (gate, up, down)
    return " / ".join(names)
