"""The market's rows in SQL: accounts, the nodes that they own, invites. Those of the ledger are imported for Django.

`market.nodes.tokens` and `market.nodes.identity` read and write them. The text of a token, an account's key or an
invite is never stored, only its SHA-256.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from market.models import ledger as ledger_models  # noqa: F401  # Django looks for an app's models here


class Account(models.Model):
    """Who owns nodes and earns for their work. Its key registers further nodes and takes them back."""

    public_id = models.CharField(max_length=16, unique=True)
    digest = models.BinaryField(max_length=32)
    name = models.CharField(max_length=100)
    created = models.DateTimeField(auto_now_add=True)
    closed = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.public_id} ({self.name})"


class NodeToken(models.Model):
    """A node and its token: which role it may take, until when, and whether it was taken back.

    `public_id` is the node's id everywhere; a new token for the same node changes the digest alone. Tokens that an
    operator issues by hand may have no account.
    """

    SCOPES: ClassVar = [("worker", "worker"), ("backbone", "backbone")]

    public_id = models.CharField(max_length=16, unique=True)
    digest = models.BinaryField(max_length=32)
    scope = models.CharField(max_length=16, choices=SCOPES)
    name = models.CharField(max_length=100)
    account = models.ForeignKey(Account, null=True, blank=True, on_delete=models.PROTECT, related_name="nodes")
    created = models.DateTimeField(auto_now_add=True)
    expires = models.DateTimeField(null=True, blank=True)
    revoked = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.public_id} ({self.scope}, {self.name})"


class Invite(models.Model):
    """A code that lets `n_left` more nodes register where registration is by invite."""

    public_id = models.CharField(max_length=16, unique=True)
    digest = models.BinaryField(max_length=32)
    name = models.CharField(max_length=100)
    n_left = models.PositiveIntegerField()
    account = models.ForeignKey(Account, null=True, blank=True, on_delete=models.CASCADE, related_name="invites")
    created = models.DateTimeField(auto_now_add=True)
    expires = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.public_id} ({self.name}, {self.n_left} left)"
