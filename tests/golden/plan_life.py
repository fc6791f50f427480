"""A worker's life at random, step by step, for golden cases: the plan decides, chance says what comes of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvasir.experts import ExpertRange
from kvasir.worker.agent import plan_actions as do
from kvasir.worker.agent import plan_changes as after
from kvasir.worker.agent.demand import Demand, DemandRun
from kvasir.worker.agent.fetch import Fetched, Outcome
from kvasir.worker.agent.market_client import Assigned, NothingWanted
from kvasir.worker.agent.plan_state import Piece, SiteModel, WorkerState

MODEL = SiteModel("demo", "f" * 64, 2, 8)
REASONS = ("the budget is full", "nothing that is wanted fits into the budget", "expert coverage at target")
OUTCOMES = (Outcome.FETCHED,) * 5 + (Outcome.AGAIN, Outcome.HOPELESS, Outcome.NO_ROOM)


class Life:
    """One worker, its clock and its luck."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = 1000.0
        self.state = WorkerState(1200)
        self.fetching: Piece | None = None

    def jitter(self) -> float:
        return self.chance.randrange(1000) / 1000

    def demand(self) -> Demand:
        runs = [
            DemandRun(ExpertRange(layer, start, start + 2), self.chance.randrange(5), self.chance.choice((1, 2, 2, 3)))
            for layer in range(MODEL.n_layer)
            for start in range(0, MODEL.n_expert, 2)
        ]
        return Demand(MODEL.fingerprint, tuple(runs))

    def offer(self) -> Assigned | NothingWanted:
        room = self.state.room_bytes - sum(piece.n_bytes for piece in self.state.pieces)
        if self.chance.random() < 0.2 or room < 400:
            return NothingWanted(self.chance.choice(REASONS), "", 20.0 + self.chance.randrange(20))
        start = self.chance.choice((0, 2, 4))
        item = ExpertRange(self.chance.randrange(MODEL.n_layer), start, start + 4)
        lease = f"{self.chance.randrange(16**4):016x}"
        return Assigned(MODEL, item, 400, "kx1", 0.5, 1500, "wss://relay.test/relay", lease)

    def step(self, action: do.Action | None, wait_s: float) -> WorkerState:  # noqa: PLR0911, C901, PLR0912 (one an action)
        """The state after this action; without one, after a while or after some event."""
        match action:
            case None:
                return self.happening(wait_s)
            case do.Register():
                return after.not_before(replace(self.state, node_id="node"), rotate_s=self.now + 900)
            case do.Rotate():
                return after.not_before(replace(self.state, served=()), rotate_s=self.now + 900)
            case do.Serve(ranges):
                if self.chance.random() < 0.2:
                    return after.not_before(self.state, serve_s=self.now + 5)
                return after.served(self.state, ranges)
            case do.Beat(ranges, _):
                return after.beaten(self.state, ranges, 45.0, self.now, self.jitter())
            case do.Fetch(piece):
                self.fetching = piece
                return replace(self.state, is_fetching=True)
            case do.Volunteer():
                answer = self.offer()
                if isinstance(answer, NothingWanted):
                    return after.not_wanted(self.state, answer, self.now)
                return after.promised(self.state, answer, self.now)
            case do.Look():
                return after.looked(self.state, self.demand(), self.now, 60.0)
            case do.PlanMove(item):
                return after.moving(self.state, item, self.now + 60 + 240 * self.jitter())
            case do.Withdraw(item):
                return after.withdrawn(self.state, item, self.now)
            case do.Stay():
                return after.stayed(self.state)
            case do.Drop(item):
                return after.dropped(self.state, item, self.now)
            case do.Leave():
                return self.state
        raise AssertionError(action)

    def happening(self, wait_s: float) -> WorkerState:
        """Time passes, and something may come."""
        self.now += wait_s if self.chance.random() < 0.5 else wait_s * self.jitter()
        luck = self.chance.random()
        if self.fetching is not None and luck < 0.7:
            done, self.fetching = Fetched(self.fetching, self.chance.choice(OUTCOMES)), None
            return after.fetched(self.state, done, self.now, self.jitter())
        if self.state.served and not self.state.is_joined and luck < 0.9:
            return after.relay_changed(self.state, True, self.now)
        if luck < 0.1:
            return after.relay_changed(self.state, False, self.now)
        if luck < 0.15:
            return after.not_before(self.state, site_s=self.now + 10)
        if luck < 0.16 and self.fetching is None:
            return after.forgotten(self.state)
        return self.state


def live(chance: random.Random, n_steps: int, ask: Mapping[str, Callable[..., Any]]) -> WorkerState:
    """Live for so many steps, asking everything that a worker may ask; returns what it knows at last."""
    life = Life(chance)
    for _ in range(n_steps):
        action = ask["next_action"](life.state, life.now)
        wait_s = 0.0 if action is not None else ask["wait_s"](life.state, life.now)
        if action is None:
            ask["is_settled"](life.state, life.now)
        life.state = life.step(action, wait_s)
    return life.state
