"""The plan's values as JSON and back, for golden cases that Python and JavaScript both read.

A dataclass is an object with its fields by name, those left out that have their default; infinity is "inf". Ranges are
[layer, start, stop]. `make_plan` writes with this, `tests/contract/test_plan_golden.py` reads with it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from kvasir.experts import ExpertRange
from kvasir.worker.agent import plan_actions
from kvasir.worker.agent.demand import Demand, DemandRun
from kvasir.worker.agent.fetch import Fetched, Outcome
from kvasir.worker.agent.market_client import Assigned, NothingWanted
from kvasir.worker.agent.plan_state import Move, NotBefore, Piece, SiteModel, WorkerState

DECISIONS = ("next_action", "wait_s", "to_state", "is_settled")
CHANGES = (
    "promised", "not_wanted", "fetched", "served", "beaten", "looked", "moving", "withdrawn", "stayed", "dropped",
    "forgotten", "relay_changed",
)  # fmt: skip
ACTIONS = tuple(item.__name__ for item in plan_actions.Action.__args__)
_KINDS: dict[str, Any] = {
    item.__name__: item
    for item in (
        *plan_actions.Action.__args__, Assigned, Demand, DemandRun, Fetched, Move, NotBefore, NothingWanted, Piece,
        SiteModel, WorkerState,
    )
}  # fmt: skip


def plain(value: Any) -> Any:
    """A value of the plan as JSON."""
    if isinstance(value, ExpertRange):
        return [value.layer, value.start, value.stop]
    if isinstance(value, Outcome):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        told = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if _is_told(value, field)}
        extra = {"is_crowded": value.is_crowded} if isinstance(value, NothingWanted) else {}
        return {"is": type(value).__name__} | {name: plain(item) for name, item in told.items()} | extra
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _is_told(value: Any, field: dataclasses.Field[Any]) -> bool:
    item = getattr(value, field.name)
    if field.default is not dataclasses.MISSING:
        return bool(item != field.default)
    return field.default_factory is dataclasses.MISSING or bool(item != field.default_factory())


def from_plain(value: Any, name: str = "") -> Any:
    """The value that `plain` wrote; `name` is the field's."""
    if value in ("inf", "-inf"):
        return math.inf if value == "inf" else -math.inf
    if name == "outcome":
        return Outcome(value)
    if isinstance(value, dict):
        kind = _KINDS[value["is"]]
        names = {field.name for field in dataclasses.fields(kind)}
        return kind(**{field: from_plain(item, field) for field, item in value.items() if field in names})
    if isinstance(value, list):
        is_range = name == "range" or (len(value) == 3 and all(isinstance(item, int) for item in value))
        return ExpertRange(*value) if is_range else tuple(from_plain(item) for item in value)
    return value
