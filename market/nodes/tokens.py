"""Node tokens: issue, check, rotate, revoke. The relay checks the token of a hello here.

A token is `kvs-<16 hex>-<43 characters>`: a public id, and 256 random bits of which only the SHA-256 is stored. Texts
of tokens are never logged and never part of an error. Functions block on SQL: call them from a thread when there is an
event loop.
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

from kvasir.errors import ConfigError, KvasirError
from market.models.nodes import Account, Invite, NodeToken

SECRET_BYTES = 32
LONGEST_DAYS = 3650
_FORM = re.compile(r"kvs-([0-9a-f]{16})-([A-Za-z0-9_-]{43})")
_NO_DIGEST = bytes(32)  # compared when there is no row, so that both answers take the same time


class TokenScope(StrEnum):
    """The role that a token allows."""

    WORKER = "worker"
    BACKBONE = "backbone"


class TokenRefusedError(KvasirError):
    """A token is refused; the message has the reason and no part of the secret."""


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token. `text` is not stored."""

    public_id: str
    text: str = field(repr=False)
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """The node of a token. `public_id` is its id; `account_id` is None for a token that an operator issued.

    `quarantine` is the id of the evidence if the node is in quarantine, set by `market.node_auth`.
    """

    public_id: str
    name: str
    scope: TokenScope
    account_id: str | None = None
    expires: datetime | None = None
    quarantine: str = ""


def issue(scope: TokenScope, name: str, days: int | None = None, account: Account | None = None) -> IssuedToken:
    """Make a node, owned by `account`, with a token that expires after `days` days, or never.

    Raises ConfigError as `check_name_and_days` does.
    """
    check_name_and_days("token", name, days)
    public_id = secrets.token_hex(8)
    text, expires = _new_text(public_id), days_from_now(days)
    NodeToken.objects.create(
        public_id=public_id, digest=digest_of(text), scope=scope, name=name, account=account, expires=expires
    )
    return IssuedToken(public_id, text, expires)


def rotate(text: str, days: int | None = None) -> IssuedToken:
    """Replace a node's token by a new one that expires after `days` days, or never.

    Raises TokenRefusedError when `text` is not valid, or was rotated by another caller at the same time.
    """
    holder = check(text, TokenScope.WORKER)
    new, expires = _new_text(holder.public_id), days_from_now(days)
    shown = NodeToken.objects.filter(public_id=holder.public_id, digest=digest_of(text), revoked=None)
    if shown.update(digest=digest_of(new), expires=expires) != 1:
        raise TokenRefusedError(f"token {holder.public_id}: it was changed at the same time")
    return IssuedToken(holder.public_id, new, expires)


def check(text: str, scope: TokenScope) -> TokenHolder:
    """Return the holder of a token. Raises TokenRefusedError unless it exists, is for `scope`, and is valid now."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise TokenRefusedError("token: none was given" if not text else "token: this is not a node token")
    row = NodeToken.objects.select_related("account").filter(public_id=form[1]).first()
    if not is_secret_of(row, text) or row is None:
        raise TokenRefusedError("token: it is not known here")
    reason = _end(row, timezone.now())
    if reason is not None:
        raise TokenRefusedError(f"token {row.public_id}: {reason}")
    if row.scope != scope:
        raise TokenRefusedError(f"token {row.public_id}: it is for scope {row.scope}, {scope} is needed")
    account_id = row.account.public_id if row.account is not None else None
    return TokenHolder(row.public_id, row.name, TokenScope(row.scope), account_id, row.expires)


def ended(public_ids: Iterable[str]) -> dict[str, str]:
    """Return the tokens among these that are no longer valid, with the reason: expired, revoked or deleted."""
    wanted = set(public_ids)
    rows = {row.public_id: row for row in NodeToken.objects.filter(public_id__in=wanted)}
    now = timezone.now()
    reasons = {public_id: _end(rows[public_id], now) if public_id in rows else "deleted" for public_id in wanted}
    return {public_id: reason for public_id, reason in reasons.items() if reason is not None}


def revoke(public_id: str) -> None:
    """Revoke a token; sockets that use it are closed soon. Raises ConfigError when there is no such token."""
    if not NodeToken.objects.filter(public_id=public_id).exists():
        raise ConfigError(f"there is no token with id {public_id!r}")
    NodeToken.objects.filter(public_id=public_id, revoked=None).update(revoked=timezone.now())


def _end(row: NodeToken, now: datetime) -> str | None:
    if row.revoked is not None:
        return f"revoked at {row.revoked:%Y-%m-%d %H:%M} UTC"
    if row.expires is not None and row.expires <= now:
        return f"expired at {row.expires:%Y-%m-%d %H:%M} UTC"
    return None


def _new_text(public_id: str) -> str:
    return f"kvs-{public_id}-{secrets.token_urlsafe(SECRET_BYTES)}"


def check_name_and_days(kind: str, name: str, days: int | None) -> None:
    """Raise ConfigError unless a new token or invite has a name of 1 to 100 characters and 1 to LONGEST_DAYS days."""
    if not name.strip() or len(name) > 100:
        raise ConfigError(f"{kind} name has {len(name)} characters, 1 to 100 that are not all blank are needed")
    if days is not None and not 1 <= days <= LONGEST_DAYS:
        raise ConfigError(f"{kind} for {days} days, 1 to {LONGEST_DAYS} is allowed")


def days_from_now(days: int | None) -> datetime | None:
    """Return the moment of expiry, or None for never."""
    return timezone.now() + timedelta(days=days) if days is not None else None


def digest_of(text: str) -> bytes:
    """Return the SHA-256 of a secret."""
    return hashlib.sha256(text.encode()).digest()


def is_secret_of(row: NodeToken | Account | Invite | None, text: str) -> bool:
    """Return whether `text` is the secret of a row, in constant time; False without a row."""
    return hmac.compare_digest(bytes(row.digest) if row is not None else _NO_DIGEST, digest_of(text))
