"""Accounts, the nodes that they own, and invites: registration, and the rights of an account's key.

Called by `market.api`, `manage.py issue_invite` and `manage.py close_account`. An account's key is `kva-...`, an invite
`kvi-...`, each with a public id and 256 random bits of which only the SHA-256 is stored. Texts are never logged and
never part of an error. All functions block on SQL.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from kvasir.errors import ConfigError
from market.errors import MarketError
from market.models.nodes import Account, Invite, NodeToken
from market.nodes import tokens
from market.settings import MarketSettings, Registration

MOST_INVITED = 100_000
_FORM = re.compile(r"(kv[ai])-([0-9a-f]{16})-([A-Za-z0-9_-]{43})")
ACCOUNT_PREFIX, INVITE_PREFIX = "kva", "kvi"


@dataclass(frozen=True, slots=True)
class Registered:
    """A new node. `token` and `account_key` are not stored; the key is empty when the account existed before."""

    node_id: str
    token: str = field(repr=False)
    expires: datetime | None
    account_id: str
    account_key: str = field(repr=False, default="")


@dataclass(frozen=True, slots=True)
class IssuedInvite:
    """A new invite. `text` is not stored."""

    public_id: str
    text: str = field(repr=False)


def register(market: MarketSettings, name: str, invite: str = "", account_key: str = "") -> Registered:
    """Make a node, and an account for it unless a key or an invite names one. Raises MarketError 401, 403 or 409."""
    if market.registration is Registration.CLOSED:
        raise MarketError(403, "registration_closed", "this site registers no nodes; ask its operator for a token")
    with transaction.atomic():
        account, key = None, ""
        if account_key:
            account = account_of(account_key)
        elif invite:
            account = _use_invite(invite)
        elif market.registration is Registration.INVITE:
            raise MarketError(403, "invite_needed", "this site registers nodes by invite: send one as invite")
        if account is None:
            account, key = _new_account(name)
        n_nodes = NodeToken.objects.filter(_current(), account=account).count()
        if n_nodes >= market.nodes_per_account:
            raise MarketError(
                409, "too_many_nodes", f"the account has {n_nodes} nodes; {market.nodes_per_account} are allowed"
            )
        token = tokens.issue(tokens.TokenScope.WORKER, name, market.node_days, account)
    return Registered(token.public_id, token.text, token.expires, account.public_id, key)


def account_of(key: str) -> Account:
    """Return the account of a key. Raises MarketError 401."""
    row = Account.objects.filter(public_id=_public_id(key, ACCOUNT_PREFIX)).first()
    if not tokens.is_secret_of(row, key) or row is None:
        raise MarketError(401, "account_unknown", "this is not the key of an account of this site")
    return _open(row)


def _open(account: Account) -> Account:
    if account.closed is None:
        return account
    raise MarketError(401, "account_closed", f"account {account.public_id} was closed at {account.closed:%Y-%m-%d} UTC")


def revoke_node(account: Account, node_id: str) -> None:
    """Revoke a node of this account. Raises MarketError 404 when the account has no node of that id."""
    if not NodeToken.objects.filter(public_id=node_id, account=account).exists():
        raise MarketError(404, "node_unknown", f"account {account.public_id} has no node {node_id[:64]!r}")
    tokens.revoke(node_id)


def close_account(public_id: str) -> int:
    """Close an account: its key and its nodes are revoked; its credits stay. Returns the number of revoked nodes.

    Raises ConfigError when there is no such account.
    """
    now = timezone.now()
    with transaction.atomic():
        account = Account.objects.filter(public_id=public_id).first()
        if account is None:
            raise ConfigError(f"there is no account with id {public_id[:64]!r}")
        Account.objects.filter(pk=account.pk, closed=None).update(closed=now)
        return NodeToken.objects.filter(_current(), account=account).update(revoked=now)


def issue_invite(name: str, n_nodes: int = 1, days: int | None = 30) -> IssuedInvite:
    """Make a code with which `n_nodes` nodes may register, each with an account of its own.

    Raises ConfigError for an invalid number of nodes, and as `tokens.check_name_and_days` does.
    """
    tokens.check_name_and_days("invite", name, days)
    if not 1 <= n_nodes <= MOST_INVITED:
        raise ConfigError(f"invite for {n_nodes} nodes, 1 to {MOST_INVITED} is allowed")
    public_id, text = _new_secret(INVITE_PREFIX)
    digest, expires = tokens.digest_of(text), tokens.days_from_now(days)
    Invite.objects.create(public_id=public_id, digest=digest, name=name, n_left=n_nodes, expires=expires)
    return IssuedInvite(public_id, text)


def _use_invite(text: str) -> Account | None:
    """Use an invite once. Returns the account that it is for, or None. Raises MarketError 401 or 403."""
    row = Invite.objects.select_related("account").filter(public_id=_public_id(text, INVITE_PREFIX)).first()
    if not tokens.is_secret_of(row, text) or row is None:
        raise MarketError(403, "invite_unknown", "this is not an invite of this site")
    if row.expires is not None and row.expires <= timezone.now():
        raise MarketError(403, "invite_expired", f"invite {row.public_id} expired at {row.expires:%Y-%m-%d %H:%M} UTC")
    if Invite.objects.filter(pk=row.pk, n_left__gt=0).update(n_left=F("n_left") - 1) != 1:
        raise MarketError(403, "invite_used", f"invite {row.public_id} has no registrations left")
    return None if row.account is None else _open(row.account)


def _new_account(name: str) -> tuple[Account, str]:
    public_id, text = _new_secret(ACCOUNT_PREFIX)
    return Account.objects.create(public_id=public_id, digest=tokens.digest_of(text), name=name), text


def _current() -> Q:
    return Q(revoked=None) & (Q(expires=None) | Q(expires__gt=timezone.now()))


def _new_secret(prefix: str) -> tuple[str, str]:
    public_id = secrets.token_hex(8)
    return public_id, f"{prefix}-{public_id}-{secrets.token_urlsafe(tokens.SECRET_BYTES)}"


def _public_id(text: str, prefix: str) -> str:
    form = _FORM.fullmatch(text)
    return form[2] if form is not None and form[1] == prefix else ""
