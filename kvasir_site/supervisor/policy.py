"""The supervisor's decisions, pure: when each child starts, what follows when one ends, the order of the stop.

Pure: it is told what happened and when, and answers with what to do. `supervisor` carries that out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 15.0
FORGIVEN_AFTER_S = 60.0  # a child that was ready for so long starts over with the shortest delay
LOGS_SHOWN = 3  # of failed restarts in a row; then only a line each


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """One child. It starts when all that it `needs` have been ready; stages stop one after the other, lowest first."""

    name: str
    needs: tuple[str, ...] = ()
    stop_stage: int = 0
    start_deadline_s: float = 60.0
    stop_deadline_s: float = 10.0


class Phase(StrEnum):
    """The state of a child."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    DELAYED = "delayed"  # it ended, and is started again after a delay
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Start:
    """Start this child's process."""

    name: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask this child to end."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End this child, whether it likes to or not."""

    name: str


@dataclass(frozen=True, slots=True)
class Say:
    """Tell the operator; with the end of a child's log when `log_of` names one."""

    text: str
    log_of: str = ""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The service cannot come up because of this child: stop everything and fail."""

    name: str
    reason: str


Action: TypeAlias = "Start | Ask | Kill | Say | GiveUp"


@dataclass(slots=True)
class _State:
    plan: ChildPlan
    phase: Phase = Phase.WAITING
    since: float = 0.0  # when the phase began
    due: float = 0.0  # of a delayed child: when it starts
    has_been_ready: bool = False
    n_short_lives: int = 0  # in a row
    n_failed_starts: int = 0  # in a row
    is_killed: bool = False  # for its deadline

    def enter(self, phase: Phase, now: float) -> None:
        self.phase, self.since = phase, now


@dataclass(slots=True)
class Supervision:
    """The state of all children. Times are seconds of one monotonic clock."""

    plans: Sequence[ChildPlan]
    is_stopping: bool = False
    _states: dict[str, _State] = field(init=False)

    def __post_init__(self) -> None:
        self._states = {plan.name: _State(plan) for plan in self.plans}
        if len(self._states) != len(self.plans):
            raise ValueError("two children have the same name")
        for plan in self.plans:
            if unknown := set(plan.needs) - set(self._states):
                raise ValueError(f"{plan.name} needs {min(unknown)}, which is no child")

    @property
    def is_up(self) -> bool:
        """Return whether all children are ready."""
        return all(state.phase is Phase.READY for state in self._states.values())

    @property
    def has_ended(self) -> bool:
        """Return whether all were stopped and have ended."""
        return self.is_stopping and all(state.phase is Phase.ENDED for state in self._states.values())

    def phase_of(self, name: str) -> Phase:
        """Return the state of a child."""
        return self._states[name].phase

    def tick(self, now: float) -> list[Action]:
        """Return the actions that are due by the clock alone."""
        if self.is_stopping:
            return self._tick_stop(now)
        actions: list[Action] = []
        for state in self._states.values():
            plan = state.plan
            if self._is_due(state, now):
                state.is_killed = False
                state.enter(Phase.STARTING, now)
                actions.append(Start(plan.name))
            elif state.phase is Phase.STARTING and self._is_late(state, now, plan.start_deadline_s):
                state.is_killed = True
                actions += [Say(f"{plan.name} was not ready within {plan.start_deadline_s:g} s"), Kill(plan.name)]
        return actions

    def became_ready(self, name: str, now: float) -> list[Action]:
        """A child that was starting serves now."""
        state = self._states[name]
        if state.phase is not Phase.STARTING:
            return []
        took_s = now - state.since
        word = "ready again" if state.has_been_ready else "ready"
        state.has_been_ready, state.n_failed_starts = True, 0
        state.enter(Phase.READY, now)
        return [Say(f"{name} is {word} ({took_s:.1f} s)")]

    def ended(self, name: str, how: str, now: float) -> list[Action]:
        """A child's process has ended; `how` says how, such as "exit code 1"."""
        state = self._states[name]
        if self.is_stopping:
            state.enter(Phase.ENDED, now)
            return []
        was_ready, lived_s = state.phase is Phase.READY, now - state.since
        if not state.has_been_ready:
            state.enter(Phase.ENDED, now)
            return [GiveUp(name, f"{name} could not start: {how}")]
        if was_ready and lived_s >= FORGIVEN_AFTER_S:
            state.n_short_lives = 0
        state.n_failed_starts += 0 if was_ready else 1
        delay_s = delay_after(state.n_short_lives)
        state.n_short_lives += 1
        state.enter(Phase.DELAYED, now)
        state.due = now + delay_s
        what = "ended" if was_ready else "could not start"
        log_of = name if 0 < state.n_failed_starts <= LOGS_SHOWN else ""
        return [Say(f"{name} {what} ({how}); it is started again in {delay_s:g} s", log_of)]

    def stop(self, now: float) -> list[Action]:
        """Begin to stop everything. Once more means: at once."""
        if self.is_stopping:
            return [Kill(name) for name, state in self._states.items() if state.phase is not Phase.ENDED]
        self.is_stopping = True
        for state in self._states.values():
            if state.phase in {Phase.WAITING, Phase.DELAYED}:
                state.enter(Phase.ENDED, now)
        return self._tick_stop(now)

    def _tick_stop(self, now: float) -> list[Action]:
        alive = [state for state in self._states.values() if state.phase is not Phase.ENDED]
        stage = min((state.plan.stop_stage for state in alive), default=0)
        actions: list[Action] = []
        for state in alive:
            plan = state.plan
            if plan.stop_stage == stage and state.phase is not Phase.STOPPING:
                state.is_killed = False
                state.enter(Phase.STOPPING, now)
                actions.append(Ask(plan.name))
            elif state.phase is Phase.STOPPING and self._is_late(state, now, plan.stop_deadline_s):
                state.is_killed = True
                actions += [Say(f"{plan.name} did not end within {plan.stop_deadline_s:g} s"), Kill(plan.name)]
        return actions

    def _is_due(self, state: _State, now: float) -> bool:
        if state.phase is Phase.DELAYED:
            return now >= state.due
        return state.phase is Phase.WAITING and all(self._states[name].has_been_ready for name in state.plan.needs)

    @staticmethod
    def _is_late(state: _State, now: float, deadline_s: float) -> bool:
        return not state.is_killed and now - state.since >= deadline_s


def delay_after(n_short_lives: int) -> float:
    """Return the seconds until a child is started again, given how many times in a row it ended early."""
    return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(n_short_lives, 16))
