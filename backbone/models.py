"""The table of API keys, for `backbone.api.keys.store`. Only the SHA-256 of a key is stored, never its text."""

from __future__ import annotations

from django.db import models


class ApiKey(models.Model):
    """A key of the REST API: its scopes, rate, expiry, and revocation."""

    public_id = models.CharField(max_length=16, unique=True)
    digest = models.BinaryField(max_length=32)
    scopes = models.CharField(max_length=100)  # names with single blanks between them
    name = models.CharField(max_length=100)
    per_minute = models.PositiveIntegerField(null=True, blank=True)  # requests; None: the rate of the site's settings
    created = models.DateTimeField(auto_now_add=True)
    expires = models.DateTimeField(null=True, blank=True)
    revoked = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.public_id} ({self.scopes}, {self.name})"
