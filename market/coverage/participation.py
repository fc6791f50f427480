"""The market of one model, without HTTP: heartbeats, demand and volunteers. One `Participation` for each process.

Called by `market.api` on the market's threads. Answers are plain JSON values with the publicly documented names.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from redis import Redis

from kvasir.experts import ExpertRange
from kvasir.slicing.expert_ranges import merge_ranges
from market.coverage.demand import Demand
from market.coverage.leases import LONGEST_LEASE_S, Lease, NoLease, Refusal, Volunteer, take_lease
from market.coverage.model_facts import ModelFacts
from market.coverage.reading import announce_shape
from market.coverage.store import Clock, CoverageStore, TooManyLeasesError, unix_ms
from market.coverage.upkeep import LOOK_EVERY_MS, Upkeep
from market.errors import MarketError
from market.schemas import CoverageBody, VolunteerBody
from market.settings import MarketSettings

MOST_SEGMENTS = 8192
RETRIES_PER_LEASE = 3  # at target: a gap opens when a heartbeat expires
SOONEST_RETRY_S = 0.5
FULL_RETRY_S = 60.0
_FACTS = ("url", "owner", "os", "device_kind", "accelerator", "backend", "region", "rows_per_s")


class Participation:
    """The market of one model."""

    def __init__(self, client: Redis, facts: ModelFacts, settings: MarketSettings, clock: Clock = unix_ms) -> None:
        self.facts = facts
        self.store = CoverageStore(client, facts, clock)
        self._settings = settings
        self._demand = Demand(self.store, settings.targets)
        self._upkeep = Upkeep(self.store, settings.targets)
        self._announce_ms = 0

    def heartbeat(self, node_id: str, body: CoverageBody) -> dict[str, Any]:
        """Answer POST /api/expert-coverage. Raises MarketError 400, 403 or 404, and Redis's errors."""
        self._check_node(node_id, body.worker_id)
        self._check_model(body.model)
        self._check_shape(body)
        ranges = parse_segments(body.segments, self.facts)
        self._tend()
        if body.leaving:
            self.store.leave(node_id)
            return {"ok": True, "lease_s": 0, "workers": self.store.n_workers()}
        stated = {name: value for name in _FACTS if (value := getattr(body, name)) not in {"", None}}
        beat = self.store.beat(
            node_id,
            ranges,
            round(self._settings.lease_s * 1000),
            json.dumps(stated),
            renew=body.leases,
            renew_ms=round(self._settings.volunteer_lease_s * 1000),
            most_ms=round(LONGEST_LEASE_S * 1000),
        )
        return {"ok": True, "lease_s": self._settings.lease_s, "workers": beat.n_workers}

    def demand(self, model: str | None) -> tuple[int, bytes]:
        """Answer GET /api/expert-demand: the version and the JSON. Raises MarketError 404, and Redis's errors."""
        self._check_model(model)
        self._tend()
        return self._demand.answer()

    def volunteer(self, node_id: str, body: VolunteerBody) -> dict[str, Any]:
        """Answer POST /api/expert-volunteer, without the relay's address. Raises MarketError, and Redis's errors."""
        if body.worker_id is not None:
            self._check_node(node_id, body.worker_id)
        self._check_model(body.model)
        if body.max_experts is None and body.budget_bytes is None:
            raise MarketError(400, "no_budget", "max_experts or budget_bytes is needed")
        stated = None if body.ranges is None else parse_segments(body.ranges, self.facts, "ranges")
        self._tend()
        volunteer = Volunteer(node_id, body.budget_bytes, body.max_experts, stated)
        try:
            answer = take_lease(self.store, volunteer, self._settings.targets, self._settings.volunteer_lease_s)
        except TooManyLeasesError as error:
            raise MarketError(409, "too_many_leases", str(error), retry_after_s=FULL_RETRY_S) from error
        if isinstance(answer, Lease):
            return self._assigned(answer)
        return _not_assigned(node_id, answer, self._settings.lease_s)

    def _assigned(self, lease: Lease) -> dict[str, Any]:
        facts, choice = self.facts, lease.choice
        item = choice.range
        experts = f"{facts.fingerprint}?experts={item.layer}:{item.start}-{item.stop}"
        return {
            "assigned": True,
            "model": facts.name,
            "fingerprint": facts.fingerprint,
            "layer": item.layer,
            "experts": [item.start, item.stop],
            "scarcity": choice.scarcity,
            "replicas": choice.replicas,
            "target": choice.target,
            "n_embd": facts.d_model,
            "n_ff": facts.d_ff,
            "n_layer": facts.n_layer,
            "n_expert": facts.n_expert,
            "bytes": facts.range_bytes(item),
            "slice_url": f"/api/slices/{experts}",
            "manifest_url": f"/api/manifests/{experts}",
            "kernel": facts.kernels[item.layer] if facts.kernels else "",
            "rate_microcredits_per_row": rate_microcredits(self._settings.rate_microcredits, choice.scarcity),
            "lease_id": lease.lease_id,
            "lease_s": lease.lease_s,
        }

    def _check_model(self, model: str | None) -> None:
        if model is not None and not self.facts.is_called(model):
            raise MarketError(404, "unknown_model", f"this site serves {self.facts.name}, not {model[:80]!r}")

    def _check_shape(self, body: CoverageBody) -> None:
        facts = self.facts
        if (body.n_layer, body.n_expert) != (facts.n_layer, facts.n_expert):
            raise MarketError(
                400,
                "wrong_shape",
                f"n_layer {body.n_layer} and n_expert {body.n_expert} are not {facts.name}'s: it has {facts.n_layer} "
                f"decoding layers of {facts.n_expert} experts",
            )

    @staticmethod
    def _check_node(node_id: str, worker_id: str) -> None:
        if worker_id != node_id:
            raise MarketError(403, "wrong_worker", f"worker_id is {worker_id!r}; this token is node {node_id}'s")

    def _tend(self) -> None:
        self._upkeep.tend()
        now_ms = self.store.clock()
        if not self._announce_ms <= now_ms < self._announce_ms + 60 * LOOK_EVERY_MS:
            announce_shape(self.store)
            self._announce_ms = now_ms


def rate_microcredits(base: int, scarcity: float) -> int:
    """Return the pay of one row through one expert: base * (1 + scarcity), rounded to a whole number."""
    return base + round(base * scarcity)


def parse_segments(raw: object, facts: ModelFacts, name: str = "segments") -> tuple[ExpertRange, ...]:
    """Parse [[layer, begin, end], ...] strictly to merged, ascending ranges.

    Raises MarketError 400 `malformed_segments` that names the layer and the value: nothing is clipped or dropped.
    """
    if not isinstance(raw, list):
        raise _malformed(f"{name} is {_shown(raw)}; it must be a list of [layer, begin, end]")
    if len(raw) > MOST_SEGMENTS:
        raise _malformed(f"{name} has {len(raw)} items; {MOST_SEGMENTS} are allowed: join ranges that touch")
    return merge_ranges(_parse_segment(item, number, facts, name) for number, item in enumerate(raw))


def _parse_segment(raw: object, number: int, facts: ModelFacts, name: str) -> ExpertRange:
    where = f"{name}[{number}]"
    if not isinstance(raw, list) or len(raw) != 3:
        raise _malformed(f"{where} is {_shown(raw)}; it must be [layer, begin, end]")
    for value, part in zip(raw, ("layer", "begin", "end"), strict=True):
        if not isinstance(value, int) or isinstance(value, bool):
            raise _malformed(f"{where} (layer {_shown(raw[0])}): {part} is {_shown(value)}; it must be a whole number")
    layer, begin, end = raw
    if not 0 <= layer < facts.n_layer:
        raise _malformed(f"{where}: layer {layer} is not decoded; layers are 0 to {facts.n_layer - 1}")
    if not facts.expert_bytes[layer]:
        raise _malformed(f"{where}: layer {layer} has no experts")
    if not 0 <= begin < end <= facts.n_expert:
        raise _malformed(
            f"{where}: layer {layer} has experts 0 to {facts.n_expert - 1}; "
            f"begin {begin} and end {end} must be 0 <= begin < end <= {facts.n_expert}"
        )
    return ExpertRange(layer, begin, end)


def _malformed(message: str) -> MarketError:
    return MarketError(400, "malformed_segments", message)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _not_assigned(node_id: str, answer: NoLease, lease_s: float) -> dict[str, Any]:
    """Answer a refusal. `retry_after_s` differs by node, so that nodes do not all retry at the same time."""
    if answer.refusal is Refusal.BUSY:
        wait_s = 1.0
    elif answer.refusal is Refusal.BUDGET_FULL:
        wait_s = FULL_RETRY_S
    else:
        usual_s = lease_s / RETRIES_PER_LEASE
        wait_s = max(SOONEST_RETRY_S, min(usual_s, usual_s if answer.first_end_s is None else answer.first_end_s))
    spread = 1.0 + (zlib.crc32(node_id.encode()) % 1000) / 2000
    return {
        "assigned": False,
        "reason": str(answer.refusal),
        "detail": answer.detail,
        "retry_after_s": round(wait_s * spread, 1),
    }
