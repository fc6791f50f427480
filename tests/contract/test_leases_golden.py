"""The placement of leases on its golden cases (tests/golden/leases): which range a volunteer gets, or why none."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir.experts import ExpertRange
from market.coverage.codec import pack_counts, pack_ranges
from market.coverage.leases import NoLease, Volunteer, place
from market.coverage.model_facts import ModelFacts
from market.coverage.store import View
from market.settings import TargetBounds

FILE = json.loads((Path(__file__).parents[1] / "golden" / "leases" / "cases.json").read_text())
SIZES = FILE["model"]["expert_bytes"]
FACTS = ModelFacts("golden", "0" * 64, len(SIZES), FILE["model"]["n_expert"], 64, 32, tuple(SIZES))


def answer(case: dict[str, Any]) -> Any:
    def packed(name: str) -> bytes:
        return b"" if case[name] is None else pack_counts(np.array(case[name], np.int64))

    def ranges(name: str) -> tuple[ExpertRange, ...]:
        return tuple(ExpertRange(*item) for item in case[name])

    leased = b"".join(struct.pack("<8sHHHdd", bytes(8), *item, 1e12, 0.0) for item in case["leases"])
    held, first_end_ms = pack_ranges(ranges("held")), case.get("first_end_ms")
    view = View(packed("counts"), packed("pending"), packed("targets"), 1, held, leased, False, first_end_ms)
    stated = ranges("stated") if "stated" in case else None
    volunteer = Volunteer(case["worker_id"], case.get("budget_bytes"), case.get("max_experts"), stated)
    found = place(FACTS, TargetBounds(*FILE["bounds"]), view, volunteer, case["attempt"])
    if isinstance(found, NoLease):
        return {"reason": str(found.refusal), "first_end_s": found.first_end_s}
    return [found.range.layer, found.range.start, found.range.stop]


@pytest.mark.parametrize("case", FILE["cases"], ids=lambda case: str(case["name"]))
def test_python_gives_the_golden_answers(case: dict[str, Any]) -> None:
    assert answer(case) == case["answer"]
