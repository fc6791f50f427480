"""The API's rows in SQL: keys. `backbone.api.keys.store` is the only module that reads and writes them.

The text of a key is never stored, only its SHA-256.
"""

from __future__ import annotations

from django.db import models


class ApiKey(models.Model):
    """A key of the REST API: what it allows, how often, until when, and whether it was taken back."""

    public_id = models.CharField(max_length=16, unique=True)
    digest = models.BinaryField(max_length=32)
    scopes = models.CharField(max_length=100)  # names with single blanks between them
    name = models.CharField(max_length=100)
    per_minute = models.PositiveIntegerField(null=True, blank=True)  # requests; None: as the site's settings say
    created = models.DateTimeField(auto_now_add=True)
    expires = models.DateTimeField(null=True, blank=True)
    revoked = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.public_id} ({self.scopes}, {self.name})"
