"""API keys in SQL: issue, check, revoke. `keys.auth` and `manage.py issue_key` call it.

A key is `kvk-<16 hex>-<43 characters>`: a public id, and 256 random bits of which only the SHA-256 is stored. Keys are
never logged and never part of an error. All functions block on SQL: call them from a thread.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from django.utils import timezone

from backbone.models import ApiKey
from kvasir.errors import ConfigError, KvasirError

SECRET_BYTES = 32
LONGEST_DAYS = 3650
MOST_PER_MINUTE = 1_000_000
_FORM = re.compile(r"kvk-([0-9a-f]{16})-([A-Za-z0-9_-]{43})")
_NOBODY = bytes(32)  # compared for an unknown key, so that both answers take the same time


class KeyScope(StrEnum):
    """A permission of a key."""

    GENERATE = "generate"  # models, completions and chat
    METRICS = "metrics"  # /metrics
    GUEST = "guest"  # no permission: marks a guest's key, which has other limits


class KeyRefusedError(KvasirError):
    """A key is invalid; the message gives the reason and contains no part of the secret."""


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key. Its `text` is stored nowhere else."""

    public_id: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The owner of a key and its permissions. `per_minute` None: the rate of the site's settings."""

    public_id: str
    name: str
    scopes: frozenset[KeyScope]
    per_minute: int | None
    expires: datetime | None


def issue(
    scopes: Iterable[KeyScope], name: str, *, days: int | None = None, per_minute: int | None = None
) -> IssuedKey:
    """Issue a key that expires after `days` days, or never. Raises ConfigError for an invalid value."""
    wanted = sorted({KeyScope(scope) for scope in scopes})
    if not wanted:
        raise ConfigError(f"a key needs at least one scope of {', '.join(KeyScope)}")
    if not name.strip() or len(name) > 100:
        raise ConfigError(f"the key's name has {len(name)} characters; 1 to 100 are needed, not all blank")
    if days is not None and not 1 <= days <= LONGEST_DAYS:
        raise ConfigError(f"a key may last 1 to {LONGEST_DAYS} days, not {days}")
    if per_minute is not None and not 1 <= per_minute <= MOST_PER_MINUTE:
        raise ConfigError(f"a key may allow 1 to {MOST_PER_MINUTE} requests a minute, not {per_minute}")
    expires = timezone.now() + timedelta(days=days) if days is not None else None
    return _create(" ".join(wanted), name, expires, per_minute)


def issue_guest(minutes: int) -> tuple[IssuedKey, datetime]:
    """Issue a guest's key and delete the expired ones, to bound the table. Return the key and its expiry."""
    scopes = f"{KeyScope.GENERATE} {KeyScope.GUEST}"
    now = timezone.now()
    ApiKey.objects.filter(scopes=scopes, expires__lt=now).delete()
    expires = now + timedelta(minutes=minutes)
    return _create(scopes, "playground guest", expires, None), expires


def check(text: str) -> KeyHolder:
    """Return the holder of a key. Raises KeyRefusedError if it is unknown, revoked or expired."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise KeyRefusedError("this is not an API key of this service")
    row = ApiKey.objects.filter(public_id=form[1]).first()
    is_same = hmac.compare_digest(bytes(row.digest) if row is not None else _NOBODY, _digest(text))
    if row is None or not is_same:
        raise KeyRefusedError("the API key is unknown")
    if row.revoked is not None:
        raise KeyRefusedError(f"the API key {row.public_id} was revoked at {row.revoked:%Y-%m-%d %H:%M} UTC")
    if row.expires is not None and row.expires <= timezone.now():
        raise KeyRefusedError(f"the API key {row.public_id} expired at {row.expires:%Y-%m-%d %H:%M} UTC")
    scopes = frozenset(KeyScope(scope) for scope in row.scopes.split())
    return KeyHolder(row.public_id, row.name, scopes, row.per_minute, row.expires)


def revoke(public_id: str) -> None:
    """Revoke a key; web processes may accept it for some seconds more. Raises ConfigError for an unknown id."""
    if not ApiKey.objects.filter(public_id=public_id).exists():
        raise ConfigError(f"there is no API key with id {public_id!r}")
    ApiKey.objects.filter(public_id=public_id, revoked=None).update(revoked=timezone.now())


def _create(scopes: str, name: str, expires: datetime | None, per_minute: int | None) -> IssuedKey:
    public_id, secret = secrets.token_hex(8), secrets.token_urlsafe(SECRET_BYTES)
    text = f"kvk-{public_id}-{secret}"
    ApiKey.objects.create(
        public_id=public_id, digest=_digest(text), scopes=scopes, name=name, per_minute=per_minute, expires=expires
    )
    return IssuedKey(public_id, text)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
