"""Nodes' days of work, quotes, standing and evidence in SQL.

Written by `market.ledger.receipts`, `market.ledger.quotes` and `market.nodes.trust_store`; read for GET /api/rewards.
Nodes are named by their public id and not by a foreign key: work and evidence outlive a node's row.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from market.models.ledger import AppendOnly

NODE_ID_LENGTH = 64
REASON_LENGTH = 200


class WorkDay(models.Model):
    """Row-experts of one node for one range of experts on one day, with their pay; unpaid with a `reason`.

    It is the sum of all `market.ledger.work_batch.WorkReceipt`s of that day, which are not stored one by one.
    """

    node_id = models.CharField(max_length=NODE_ID_LENGTH)
    fingerprint = models.CharField(max_length=64)
    layer = models.PositiveIntegerField()
    start = models.PositiveIntegerField()
    stop = models.PositiveIntegerField()
    day = models.PositiveIntegerField()  # days since 1970-01-01 UTC
    reason = models.CharField(max_length=REASON_LENGTH, blank=True)
    row_experts = models.BigIntegerField()
    microcredits = models.BigIntegerField()  # earned, or withheld if there is a reason

    class Meta:
        """One row for each day, range and reason; indexed to read a node's newest rows first."""

        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["node_id", "day", "fingerprint", "layer", "start", "stop", "reason"], name="work_one_row_each"
            )
        ]
        indexes: ClassVar = [models.Index(fields=["node_id", "-day", "-id"], name="work_newest")]

    def __str__(self) -> str:
        return f"{self.node_id} {self.layer}:{self.start}-{self.stop} on day {self.day}: {self.row_experts}"


class RateQuote(models.Model):
    """The rate that a node was quoted with a lease."""

    node_id = models.CharField(max_length=NODE_ID_LENGTH)
    fingerprint = models.CharField(max_length=64)
    layer = models.PositiveIntegerField()
    start = models.PositiveIntegerField()
    stop = models.PositiveIntegerField()
    microcredits_per_row = models.BigIntegerField()
    at = models.FloatField()  # Unix seconds

    class Meta:
        """Indexed by node and layer."""

        indexes: ClassVar = [models.Index(fields=["node_id", "fingerprint", "layer"], name="quote_place")]

    def __str__(self) -> str:
        return f"{self.node_id} {self.layer}:{self.start}-{self.stop} at {self.microcredits_per_row}"


class NodeTrust(models.Model):
    """The standing of a node, which outlives restarts of backbones."""

    node_id = models.CharField(max_length=NODE_ID_LENGTH, unique=True)
    verified = models.BigIntegerField(default=0)
    failures = models.PositiveIntegerField(default=0)
    doubt = models.BigIntegerField(default=0)
    quarantined = models.BooleanField(default=False)
    evidence_id = models.CharField(max_length=64, blank=True)
    changed = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"{self.node_id}: {self.verified} verified, {self.failures} lies"


class Evidence(AppendOnly):
    """A proven wrong answer, as the backbone found it. Shown to the node's owner."""

    evidence_id = models.CharField(max_length=64, unique=True)
    node_id = models.CharField(max_length=NODE_ID_LENGTH, db_index=True)
    at = models.FloatField()  # Unix seconds
    facts = models.JSONField()  # layer, experts, hashes, how it was found

    def __str__(self) -> str:
        return f"{self.evidence_id} ({self.node_id})"
