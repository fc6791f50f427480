"""The bodies of the market's requests, parsed by ninja, and the form of times in its answers.

Unknown fields are ignored: clients may send more than this site reads.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from ninja import Schema
from pydantic import Field, StrictInt

Text = Annotated[str, Field(max_length=200)]
NodeId = Annotated[str, Field(min_length=1, max_length=64)]
LeaseId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
LARGEST = 1 << 53  # the largest whole number that every JSON parser keeps exactly


class RegisterBody(Schema):
    """POST /api/nodes."""

    invite: Text = ""
    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"\S")] = "node"


class RevokeBody(Schema):
    """POST /api/nodes/revoke."""

    node_id: NodeId


class CoverageBody(Schema):
    """POST /api/expert-coverage. `segments` is parsed by `market.coverage.participation`."""

    worker_id: NodeId
    model: Text
    n_layer: StrictInt
    n_expert: StrictInt
    segments: Any
    url: Text = ""
    owner: Text = ""
    os: Text = ""
    device_kind: Text = ""
    accelerator: Text = ""
    backend: Text = ""
    region: Annotated[str, Field(max_length=40)] = ""
    rows_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    leases: list[LeaseId] = Field(default_factory=list, max_length=64)
    leaving: bool = False


class VolunteerBody(Schema):
    """POST /api/expert-volunteer: at least one of the two budgets. `ranges` has the form of `segments`."""

    worker_id: NodeId | None = None
    model: Text | None = None
    max_experts: Annotated[StrictInt, Field(ge=1, le=LARGEST)] | None = None
    budget_bytes: Annotated[StrictInt, Field(ge=0, le=LARGEST)] | None = None
    ranges: Any = None


def iso(moment: datetime | None) -> str | None:
    """Return a moment as UTC to the second, such as 2026-01-31T12:00:00Z."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
