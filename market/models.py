"""The market's rows in SQL. Tokens so far; `market.tokens` is the only module that reads and writes them.

The text of a token is never stored, only its SHA-256.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class NodeToken(models.Model):
    """A token that lets a node join: which role it may take, until when, and whether it was taken back."""

    SCOPES: ClassVar = [("worker", "worker"), ("backbone", "backbone")]

    public_id = models.CharField(max_length=16, unique=True)
    digest = models.BinaryField(max_length=32)
    scope = models.CharField(max_length=16, choices=SCOPES)
    name = models.CharField(max_length=100)
    created = models.DateTimeField(auto_now_add=True)
    expires = models.DateTimeField(null=True, blank=True)
    revoked = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.public_id} ({self.scope}, {self.name})"
