"""Keeps the engine's trust in nodes in the market's tables. `market_link` gives one to the work guard.

Workers at an address are not nodes: the trust in them ends with the process. `learn` reads lies that other backbones
have proven, and nodes that the operator has released.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from django.db import Error

from backbone.engine.trust.audit import Evidence
from backbone.engine.trust.book import TrustBook
from backbone.engine.trust.receipts import ReceiptBook
from backbone.engine.trust.standing import TrustState
from kvasir.errors import EdgeError
from market.nodes import trust_store
from market.nodes.trust_store import SavedTrust

logger = logging.getLogger(__name__)


class SqlTrustKeeper:
    """Implements the engine's TrustKeeper."""

    def load(self, worker_id: str) -> TrustState | None:
        """Return the saved state, or None for a new node.

        Raises EdgeError if SQL cannot be read: the node may have lied, so its entry test waits.
        """
        if not is_node(worker_id):
            return None
        try:
            saved = trust_store.load(worker_id)
        except Error as error:
            raise EdgeError(f"the trust in node {worker_id} cannot be read: {type(error).__name__}") from error
        return None if saved is None else TrustState(**asdict(saved))

    def save(self, worker_id: str, state: TrustState, evidence: Evidence | None) -> None:
        """Save a state, and the evidence if it was changed by a lie. Raises django.db.Error."""
        if is_node(worker_id):
            trust_store.save(worker_id, SavedTrust(**asdict(state)), None if evidence is None else evidence.as_json())


def learn(book: TrustBook, receipts: ReceiptBook, now: Callable[[], float]) -> list[tuple[str, str]]:
    """Read from SQL what other backbones and the operator changed for the nodes in `book`. Raises django.db.Error.

    A node that lied elsewhere is in quarantine here too: its further answers are confirmed and not paid, and its
    unchecked receipts are withheld. Return the nodes that have lied elsewhere, each with the id of the evidence.
    """
    liars: list[tuple[str, str]] = []
    saved = trust_store.trust_of(filter(is_node, book.states()))
    for node_id, kept in saved.items():
        news = TrustState(**asdict(kept))
        if not is_news(book.state(node_id), news):
            continue
        before, after = book.change(node_id, partial(_after_news, news=news))
        if after.failures > before.failures:
            liars.append((node_id, news.evidence_id))
            n_withheld = receipts.withhold(
                node_id, now(), f"another backbone proved a lie (evidence {news.evidence_id})"
            )
            logger.warning(
                "node %s lied to another backbone: quarantined, %d row-experts withheld", node_id, n_withheld
            )
        elif before.quarantined and not after.quarantined:
            logger.info("node %s was released", node_id)
    return liars


def _after_news(state: TrustState, news: TrustState) -> TrustState:
    return news if is_news(state, news) else state


def is_news(state: TrustState, kept: TrustState) -> bool:
    """Return whether the saved state is newer: a further lie, or a release after the same lie."""
    is_release = state.quarantined and not kept.quarantined and state.evidence_id == kept.evidence_id
    return kept.failures > state.failures or (kept.failures == state.failures and is_release)


def is_node(worker_id: str) -> bool:
    """Return whether this is a node's public id, not an address (HOST:PORT) or an edge without a node."""
    return 0 < len(worker_id) <= 64 and ":" not in worker_id
