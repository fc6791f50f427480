"""Accounts, their nodes and invites in SQL.

`market.nodes.tokens` and `market.nodes.identity` read and write them. Of a token, an account's key or an invite, only
the SHA-256 is stored.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Account(models.Model):
    """An owner of nodes, which earns for their work. Its key registers further nodes and revokes them."""

    public_id = models.CharField(max_length=16, unique=True)
    digest = models.BinaryField(max_length=32)
    name = models.CharField(max_length=100)
    created = models.DateTimeField(auto_now_add=True)
    closed = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.public_id} ({self.name})"


class NodeToken(models.Model):
    """A node and its token: its scope, its expiry and its revocation.

    `public_id` is the node's id everywhere; a rotation changes only the digest and the expiry. Nodes whose token an
    operator issued have no account.
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
