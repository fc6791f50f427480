"""Evidence against a node, as the engine makes it."""

from __future__ import annotations

from backbone.engine.trust.audit import Evidence

MODEL = "f" * 64
DAY_ONE = 20_423 * 86_400.0  # 2025-12-01


def evidence(node_id: str, evidence_id: str = "e1", at: float = DAY_ONE) -> Evidence:
    hashes = ("a" * 64, "b" * 64, "c" * 64)
    return Evidence(evidence_id, node_id, MODEL, "kx1", 3, (1, 5), 16, 2, *hashes, "audit", at)
