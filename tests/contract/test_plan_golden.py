"""The plan of a worker on its golden cases, in Python and in JavaScript."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from kvasir.edge.reconnect import failures_after, reconnect_delay_s
from kvasir.edge.signs_of_life import KeepAlive, keepalive_action
from kvasir.worker.agent import plan, plan_changes
from kvasir.worker.agent.plan_actions import must_finish
from tests.browser.node_tests import run_node_tests
from tests.golden.make_plan import CASES
from tests.golden.plan_values import ACTIONS, CHANGES, DECISIONS, from_plain, plain

Case = dict[str, Any]
FILE = json.loads(CASES.read_text())


def unpooled(value: Any) -> Any:
    """The value with its shared parts in their places."""
    if isinstance(value, str) and value.startswith("#"):
        return unpooled(FILE["values"][int(value[1:])])
    if isinstance(value, dict):
        return {name: unpooled(item) for name, item in value.items()}
    return [unpooled(item) for item in value] if isinstance(value, list) else value


FOUND: list[Case] = [unpooled(case) for case in FILE["cases"]]


def answer(case: Case) -> Any:
    name, given = case["ask"], case["given"]
    if name == "keepalive_action":
        now, heard, pinged, settings = given
        return keepalive_action(now, heard, pinged, KeepAlive(*settings)).name
    if name == "must_finish":
        return must_finish(from_plain(*given))
    if name in {"reconnect_delay_s", "failures_after"}:
        return (reconnect_delay_s if name == "reconnect_delay_s" else failures_after)(*given)
    function = getattr(plan if name in DECISIONS else plan_changes, name)
    return plain(function(*(from_plain(item) for item in given)))


@pytest.mark.parametrize("name", sorted({case["ask"] for case in FOUND}))
def test_python_gives_the_golden_answers(name: str) -> None:
    for case in FOUND:
        if case["ask"] == name:
            assert answer(case) == case["answer"], case


def test_every_question_and_every_action_is_golden() -> None:
    assert {case["ask"] for case in FOUND} > {*DECISIONS, *CHANGES}
    actions = Counter(case["answer"]["is"] for case in FOUND if case["ask"] == "next_action" and case["answer"])
    assert set(actions) == set(ACTIONS)
    assert {case["given"][0]["is"] for case in FOUND if case["ask"] == "must_finish"} == set(ACTIONS)


def test_javascript_gives_the_golden_answers() -> None:
    run_node_tests("plan_golden.test.mjs", len(DECISIONS) + len(CHANGES) + 4)  # must_finish and three paces
