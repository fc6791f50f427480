"""Node tokens: what is stored, who is let in, and what the command prints."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from kvasir.errors import ConfigError
from market.models.nodes import NodeToken
from market.nodes.tokens import TokenRefusedError, TokenScope, check, ended, issue, revoke
from tests.site.database import database_at


@pytest.fixture(autouse=True)
def database(tmp_path: Path) -> Iterator[None]:
    with database_at(tmp_path / "tokens.sqlite3"):
        yield


def test_a_token_opens_what_it_is_for() -> None:
    token = issue(TokenScope.WORKER, "attic")
    holder = check(token.text, TokenScope.WORKER)
    assert (holder.public_id, holder.name, holder.scope) == (token.public_id, "attic", TokenScope.WORKER)


def test_only_the_hash_is_stored_and_nothing_shows_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = issue(TokenScope.WORKER, "attic")
    secret = token.text.split("-", 2)[2]
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM market_nodetoken")
        stored = [bytes(v) if isinstance(v, bytes | memoryview) else str(v).encode() for v in cursor.fetchone()]
    assert hashlib.sha256(token.text.encode()).digest() in stored
    assert not any(secret.encode() in value for value in stored)
    with pytest.raises(TokenRefusedError) as refused:
        check(token.text, TokenScope.BACKBONE)
    for shown in (repr(token), str(NodeToken.objects.get()), str(refused.value), caplog.text):
        assert secret not in shown


def test_secrets_have_256_bits_and_differ() -> None:
    secrets = {issue(TokenScope.WORKER, "w").text.split("-", 2)[2] for _ in range(20)}
    assert len(secrets) == 20
    assert {len(secret) for secret in secrets} == {43}  # 32 bytes in base 64


@pytest.mark.parametrize("change", ["last", "id", "shorter", "longer", "empty", "other"])
def test_any_other_text_is_refused(change: str) -> None:
    text = issue(TokenScope.WORKER, "attic").text
    wrong = {
        "last": text[:-1] + ("A" if text[-1] != "A" else "B"),
        "id": "kvs-0123456789abcdef" + text[20:],
        "shorter": text[:-1],
        "longer": text + "A",
        "empty": "",
        "other": "password",
    }[change]
    with pytest.raises(TokenRefusedError, match="token"):
        check(wrong, TokenScope.WORKER)


def test_the_other_scope_is_refused_by_name() -> None:
    with pytest.raises(TokenRefusedError, match="for scope backbone, worker is needed"):
        check(issue(TokenScope.BACKBONE, "b").text, TokenScope.WORKER)


def test_expired_and_revoked_tokens_are_refused_with_the_time() -> None:
    short, gone = issue(TokenScope.WORKER, "short", days=1), issue(TokenScope.WORKER, "gone")
    assert check(short.text, TokenScope.WORKER).name == "short"
    NodeToken.objects.filter(public_id=short.public_id).update(expires=timezone.now() - timedelta(seconds=1))
    revoke(gone.public_id)
    with pytest.raises(TokenRefusedError, match="expired at"):
        check(short.text, TokenScope.WORKER)
    with pytest.raises(TokenRefusedError, match="revoked at"):
        check(gone.text, TokenScope.WORKER)


def test_ended_names_the_tokens_that_count_no_more() -> None:
    good, gone = issue(TokenScope.WORKER, "good"), issue(TokenScope.WORKER, "gone")
    revoke(gone.public_id)
    reasons = ended([good.public_id, gone.public_id, "f" * 16])
    assert set(reasons) == {gone.public_id, "f" * 16}
    assert reasons[gone.public_id].startswith("revoked")


def test_revoking_twice_keeps_the_first_time_and_unknown_ids_are_errors() -> None:
    token = issue(TokenScope.WORKER, "w")
    revoke(token.public_id)
    first = NodeToken.objects.get().revoked
    revoke(token.public_id)
    assert NodeToken.objects.get().revoked == first
    with pytest.raises(ConfigError, match="no token with id"):
        revoke("0" * 16)


@pytest.mark.parametrize(("name", "days"), [("", None), ("  ", None), ("n" * 101, None), ("n", 0), ("n", 3651)])
def test_names_and_days_out_of_range_are_errors(name: str, days: int | None) -> None:
    with pytest.raises(ConfigError):
        issue(TokenScope.WORKER, name, days)


def test_the_command_prints_the_token_once_and_alone() -> None:
    out, err = StringIO(), StringIO()
    call_command("issue_token", scope="worker", name="attic", days=3, stdout=out, stderr=err)
    text = out.getvalue().strip()
    assert out.getvalue() == text + "\n"
    assert text not in err.getvalue()
    assert check(text, TokenScope.WORKER).public_id in err.getvalue()
    row = NodeToken.objects.get()
    assert row.expires is not None
    assert timedelta(days=2) < row.expires - timezone.now() <= timedelta(days=3)


def test_the_command_revokes() -> None:
    token = issue(TokenScope.WORKER, "w")
    call_command("issue_token", revoke=token.public_id, stdout=StringIO())
    with pytest.raises(TokenRefusedError):
        check(token.text, TokenScope.WORKER)


def test_the_command_says_what_is_missing() -> None:
    with pytest.raises(CommandError, match="--scope and --name"):
        call_command("issue_token", scope="worker")
    with pytest.raises(CommandError, match="no token with id"):
        call_command("issue_token", revoke="0" * 16)
