"""The trust states of this process's workers, with a keeper that saves them across restarts.

`guard` owns a book. States are loaded when a worker is first seen and saved after changes; both may be slow, so the
engine's thread calls neither. The rules are in `trust.standing`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from backbone.engine.trust.audit import Evidence
from backbone.engine.trust.standing import TrustPolicy, TrustState, is_proven


class TrustKeeper(Protocol):
    """Storage of trust states and evidence, for example in SQL. Called from background threads, one call at a time."""

    def load(self, worker_id: str) -> TrustState | None:
        """Return the state that was saved last, or None for a new worker."""
        ...

    def save(self, worker_id: str, state: TrustState, evidence: Evidence | None) -> None:
        """Save a state, with the evidence if a lie changed it."""
        ...


class Forgetful:
    """A TrustKeeper that saves nothing."""

    def load(self, worker_id: str) -> TrustState | None:
        """Return None."""
        return None

    def save(self, worker_id: str, state: TrustState, evidence: Evidence | None) -> None:
        """Do nothing."""


class TrustBook:
    """Trust states by worker. Thread-safe."""

    def __init__(self, policy: TrustPolicy, keeper: TrustKeeper) -> None:
        self.policy = policy
        self._keeper = keeper
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._states: dict[str, TrustState] = {}
        self._unsaved: dict[str, Evidence | None] = {}

    def load(self, worker_id: str) -> TrustState:
        """Load the saved state of a new worker, unless it is loaded already, and return the state. May be slow."""
        with self._saving:
            kept = None if worker_id in self._states else self._keeper.load(worker_id)
        with self._lock:
            return self._states.setdefault(worker_id, kept or TrustState())

    def state(self, worker_id: str) -> TrustState:
        """Return the current state; that of a new worker if none was loaded."""
        return self._states.get(worker_id, TrustState())

    def is_proven(self, worker_id: str) -> bool:
        """Return whether the worker's answers may be used before they are checked."""
        return is_proven(self.state(worker_id), self.policy)

    def states(self) -> dict[str, TrustState]:
        """Return all states, for status pages."""
        return dict(self._states)

    def change(
        self, worker_id: str, rule: Callable[[TrustState], TrustState], evidence: Evidence | None = None
    ) -> tuple[TrustState, TrustState]:
        """Apply a rule and return the states before and after."""
        with self._lock:
            before = self._states.get(worker_id, TrustState())
            after = rule(before)
            self._states[worker_id] = after
            self._unsaved[worker_id] = evidence or self._unsaved.get(worker_id)
            return before, after

    def save(self) -> None:
        """Save all changed states. Those that the keeper fails to save are tried again next time. May be slow."""
        with self._saving:
            with self._lock:
                unsaved, self._unsaved = self._unsaved, {}
            while unsaved:
                worker_id, evidence = next(iter(unsaved.items()))
                try:
                    self._keeper.save(worker_id, self._states[worker_id], evidence)
                except BaseException:
                    with self._lock:
                        for name, found in unsaved.items():
                            self._unsaved[name] = self._unsaved.get(name) or found
                    raise
                del unsaved[worker_id]
