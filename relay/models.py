"""The relay's rows in SQL: one for each edge that has ended. `relay.sockets.usage` writes them."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class EdgeUsage(models.Model):
    """The usage of one edge, and its mood: why it ended."""

    relay_id = models.CharField(max_length=64)
    edge = models.BigIntegerField()
    backbone_token = models.CharField(max_length=16)
    worker_token = models.CharField(max_length=16)
    began = models.DateTimeField()
    seconds = models.FloatField()
    frames_to_worker = models.BigIntegerField()
    bytes_to_worker = models.BigIntegerField()
    frames_to_backbone = models.BigIntegerField()
    bytes_to_backbone = models.BigIntegerField()
    n_refused_busy = models.BigIntegerField()
    mood = models.CharField(max_length=200)

    class Meta:
        """One index, for the usage of a worker over time."""

        indexes: ClassVar = [models.Index(fields=["worker_token", "began"], name="edge_usage_by_worker")]

    def __str__(self) -> str:
        return f"edge {self.edge} of relay {self.relay_id}: {self.mood}"
