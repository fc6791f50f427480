"""Writes tests/golden/plan/cases.json: what a worker decides and what it knows afterwards, case by case.

Run `python -m tests.golden.make_plan` when a rule of the plan changes. It takes down every question that the tests of
the plan (tests/unit/test_worker_plan*.py) ask, with the answer, and the steps of a worker's life at random.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvasir.edge.reconnect import failures_after, reconnect_delay_s
from kvasir.edge.signs_of_life import KeepAlive, keepalive_action
from kvasir.worker.agent import plan, plan_changes
from kvasir.worker.agent.plan_actions import must_finish
from tests.golden.plan_life import live
from tests.golden.plan_values import CHANGES, DECISIONS, from_plain, plain

ROOT = Path(__file__).parents[2]
CASES = Path(__file__).parent / "plan" / "cases.json"
Case = dict[str, Any]
LIFE_STEPS = 240


class Notes:
    """Takes down calls, each question once."""

    def __init__(self) -> None:
        self.cases: dict[str, Case] = {}

    def noted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, every call of which is a case."""

        def call(*arguments: Any, **named: Any) -> Any:
            given = [*arguments, *named.values()]  # in tests named arguments are the last ones, in their order
            answer = function(*arguments, **named)
            case = {"ask": name, "given": [plain(item) for item in given], "answer": plain(answer)}
            self.cases.setdefault(json.dumps([name, case["given"]], sort_keys=True), case)
            return answer

        return call


class Listener:
    """A pytest plugin that listens to the tests of the plan."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        modules: set[ModuleType] = {item.module for item in session.items if isinstance(item, pytest.Function)}
        for module in modules:
            for name in DECISIONS:
                if hasattr(module, name):
                    setattr(module, name, self._notes.noted(name, getattr(plan, name)))


def cases() -> list[Case]:
    """All cases, in an order that does not change."""
    notes = Notes()
    kept = {name: getattr(plan_changes, name) for name in CHANGES}
    for name, function in kept.items():
        setattr(plan_changes, name, notes.noted(name, function))
    try:
        files = sorted(str(path) for path in (ROOT / "tests" / "unit").glob("test_worker_plan_*.py"))
        code = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:randomly", *files], plugins=[Listener(notes)])
        if code != 0:
            raise SystemExit("the tests of the plan fail")
        live(random.Random(5), LIFE_STEPS, {name: notes.noted(name, getattr(plan, name)) for name in DECISIONS})
    finally:
        for name, function in kept.items():
            setattr(plan_changes, name, function)
    found = [*notes.cases.values()]
    return [*found, *interruptions(found), *paces()]


def interruptions(found: list[Case]) -> list[Case]:
    """For one action of each kind that was decided: whether a stop has to wait for it."""
    answers = [case["answer"] for case in found if case["ask"] == "next_action" and case["answer"]]
    return [
        {"ask": "must_finish", "given": [action], "answer": must_finish(from_plain(action))}
        for action in {answer["is"]: answer for answer in answers}.values()
    ]


def paces() -> list[Case]:
    """When a relay is dialled again, and when one that is silent is given up."""
    found = [
        {"ask": "reconnect_delay_s", "given": [n, jitter], "answer": reconnect_delay_s(n, jitter)}
        for n in (0, 1, 2, 3, 6, 7, 8, 17, 18, 1000)
        for jitter in (0.0, 0.25, 0.999)
    ]
    found += [
        {"ask": "failures_after", "given": [n, lasted], "answer": failures_after(n, lasted)}
        for n in (0, 4)
        for lasted in (0.0, 29.9, 30.0, 1e6)
    ]
    settings = KeepAlive(3.0, 5.0)
    return found + [
        {
            "ask": "keepalive_action",
            "given": [now, heard, pinged, [3.0, 5.0]],
            "answer": keepalive_action(now, heard, pinged, settings).name,
        }
        for now in (10.0, 12.9, 13.0, 14.9, 15.0, 18.0)
        for heard in (10.0, 12.0)
        for pinged in (9.0, 10.0, 10.5, 13.0)
    ]


class Pool:
    """States and demands are long and come back often: each is written once and named by its number."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def pooled(self, value: Any) -> Any:
        """The value with `"#n"` for each that is in the pool, which those that are missing now are too."""
        if isinstance(value, list):
            return [self.pooled(item) for item in value]
        if not isinstance(value, dict):
            return value
        inner = {name: self.pooled(item) for name, item in value.items()}
        if value.get("is") not in {"WorkerState", "Demand", "SiteModel"}:
            return inner
        return f"#{self.texts.setdefault(json.dumps(inner), len(self.texts))}"


def golden_json(found: list[Case]) -> str:
    """The text of cases.json."""
    pool = Pool()
    texts = [json.dumps(pool.pooled(case)) for case in found]
    values, lines = ",\n".join(pool.texts), ",\n".join(texts)
    return f'{{"values": [\n{values}\n],\n"cases": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    CASES.parent.mkdir(exist_ok=True)
    CASES.write_text(golden_json(cases()))
