"""The last phase: a worker that is asked to leave does nothing else any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvasir.worker.agent.plan import next_action
from kvasir.worker.agent.plan_actions import Leave
from kvasir.worker.agent.plan_state import WorkerState
from tests.unit.worker_states import NOW, ROOM, A, at_rest, new_node, promise, times


@pytest.mark.parametrize(
    "state",
    [
        WorkerState(ROOM),
        new_node(),
        at_rest(A),
        at_rest(A, stated=(), times=times(heartbeat_s=0, volunteer_s=0)),
        at_rest(A, pieces=(promise(A),), is_fetching=True),
        at_rest(A, times=times(site_s=NOW + 100)),
    ],
)
def test_leaving_comes_before_all_else(state: WorkerState) -> None:
    assert next_action(replace(state, stop_reason="the worker got SIGTERM"), NOW) == Leave("the worker got SIGTERM")
