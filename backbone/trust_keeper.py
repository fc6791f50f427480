"""Keeps the engine's trust in nodes in the market's tables. `backbone_process` gives one to the work guard.

Workers at an address are no nodes: what is known of them ends with the process.
"""

from __future__ import annotations

from dataclasses import asdict

from django.db import Error

from backbone.engine.audit import Evidence
from backbone.engine.trust import TrustState
from kvasir.errors import EdgeError
from market import trust_store
from market.trust_store import SavedTrust


class SqlTrustKeeper:
    """Implements the engine's TrustKeeper."""

    def load(self, worker_id: str) -> TrustState | None:
        """What was saved last, or None for a new node.

        Raises EdgeError when SQL cannot be read: then nobody knows whether the node lied, and its entry waits.
        """
        if not is_node(worker_id):
            return None
        try:
            saved = trust_store.load(worker_id)
        except Error as error:
            raise EdgeError(f"what is known of node {worker_id} cannot be read: {type(error).__name__}") from error
        return None if saved is None else TrustState(**asdict(saved))

    def save(self, worker_id: str, state: TrustState, evidence: Evidence | None) -> None:
        """Keep a state, and the evidence that changed it if it was a lie. Raises django.db.Error."""
        if is_node(worker_id):
            trust_store.save(worker_id, SavedTrust(**asdict(state)), None if evidence is None else evidence.as_json())


def is_node(worker_id: str) -> bool:
    """Whether this is a node's public id, and not an address (HOST:PORT) or an edge without a node."""
    return 0 < len(worker_id) <= 64 and ":" not in worker_id
