"""Node tokens: issue, check, rotate, revoke. The relay asks here whether a hello's token is good.

A token is `kvs-<16 hex>-<43 characters>`: a public id to find it by, and 256 random bits of which only the SHA-256
is stored. Texts of tokens are never logged and never part of an error. Functions that touch SQL block: call them
from a thread when there is an event loop.
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
from market.models.nodes import Account, NodeToken

SECRET_BYTES = 32
LONGEST_DAYS = 3650
_FORM = re.compile(r"kvs-([0-9a-f]{16})-([A-Za-z0-9_-]{43})")
_NOBODY = bytes(32)  # compared with when there is no such token, so that both answers take the same time


class TokenScope(StrEnum):
    """What a token allows."""

    WORKER = "worker"
    BACKBONE = "backbone"


class TokenRefusedError(KvasirError):
    """A token is not good for what was asked; the message says why and holds no part of the secret."""


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token. `text` exists only here."""

    public_id: str
    text: str = field(repr=False)
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """Whose token it is. `public_id` is the node's id; `account_id` is None for a token that an operator made.

    `quarantine` is the id of the evidence for which the node is left out; `market.nodes.node_auth` fills it in.
    """

    public_id: str
    name: str
    scope: TokenScope
    account_id: str | None = None
    expires: datetime | None = None
    quarantine: str = ""


def issue(scope: TokenScope, name: str, days: int | None = None, account: Account | None = None) -> IssuedToken:
    """Make a node with a token that ends after `days` days, or never; `account` owns it.

    Raises ConfigError for a name or number that cannot be.
    """
    if not name.strip() or len(name) > 100:
        raise ConfigError(f"token name has {len(name)} characters, 1 to 100 that are not all blank are needed")
    if days is not None and not 1 <= days <= LONGEST_DAYS:
        raise ConfigError(f"token for {days} days, 1 to {LONGEST_DAYS} is allowed")
    public_id = secrets.token_hex(8)
    text, expires = _new_text(public_id), _days_from_now(days)
    NodeToken.objects.create(
        public_id=public_id, digest=_digest(text), scope=scope, name=name, account=account, expires=expires
    )
    return IssuedToken(public_id, text, expires)


def rotate(text: str, days: int | None = None) -> IssuedToken:
    """A new token for the same node, for `days` more days; the one that was shown counts no more.

    Raises TokenRefusedError when the shown one is not good, or was rotated by somebody else at the same moment.
    """
    holder = check(text, TokenScope.WORKER)
    new, expires = _new_text(holder.public_id), _days_from_now(days)
    shown = NodeToken.objects.filter(public_id=holder.public_id, digest=_digest(text), revoked=None)
    if shown.update(digest=_digest(new), expires=expires) != 1:
        raise TokenRefusedError(f"token {holder.public_id}: it was changed at this moment")
    return IssuedToken(holder.public_id, new, expires)


def check(text: str, scope: TokenScope) -> TokenHolder:
    """Whose token this is. Raises TokenRefusedError unless it exists, is for `scope`, and still counts."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise TokenRefusedError("token: none was given" if not text else "token: this is not a node token")
    row = NodeToken.objects.select_related("account").filter(public_id=form[1]).first()
    is_same = hmac.compare_digest(bytes(row.digest) if row is not None else _NOBODY, _digest(text))
    if row is None or not is_same:
        raise TokenRefusedError("token: it is not known here")
    reason = _end(row, timezone.now())
    if reason is not None:
        raise TokenRefusedError(f"token {row.public_id}: {reason}")
    if row.scope != scope:
        raise TokenRefusedError(f"token {row.public_id}: it is for scope {row.scope}, {scope} is needed")
    account_id = row.account.public_id if row.account is not None else None
    return TokenHolder(row.public_id, row.name, TokenScope(row.scope), account_id, row.expires)


def ended(public_ids: Iterable[str]) -> dict[str, str]:
    """Which of these tokens count no more, with the reason: expired, revoked or deleted."""
    wanted = set(public_ids)
    rows = {row.public_id: row for row in NodeToken.objects.filter(public_id__in=wanted)}
    now = timezone.now()
    reasons = {public_id: _end(rows[public_id], now) if public_id in rows else "deleted" for public_id in wanted}
    return {public_id: reason for public_id, reason in reasons.items() if reason is not None}


def revoke(public_id: str) -> None:
    """Take a token back; sockets that use it end soon. Raises ConfigError when there is no such token."""
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


def _days_from_now(days: int | None) -> datetime | None:
    return timezone.now() + timedelta(days=days) if days is not None else None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
