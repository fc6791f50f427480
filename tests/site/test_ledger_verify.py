"""`manage.py verify_ledger`: a sound ledger passes; each way in which it can be wrong is found and named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from market.ledger import check as ledger_check
from market.ledger.posting import balance, reverse
from market.ledger.receipts import record
from market.ledger.work_batch import WorkBatch, WorkReceipt
from market.nodes.tokens import TokenScope, issue
from tests.site.database import database_at

MODEL = "f" * 64


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with database_at(tmp_path_factory.mktemp("ledger") / "ledger.sqlite3"):
        yield


@pytest.fixture
def node_id(database: None) -> Iterator[str]:
    """A node with three batches of work, one of them withheld."""
    with transaction.atomic():
        node_id = issue(TokenScope.WORKER, "n").public_id
        for number, reason in enumerate(["", "", "a lie"]):
            record(WorkBatch(f"b:{number}", (WorkReceipt(node_id, MODEL, 3, 0, 8, 5, 1e9, reason),)))
        yield node_id
        transaction.set_rollback(True)


def verify(*arguments: str) -> str:
    out = StringIO()
    call_command("verify_ledger", *arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


def findings(*arguments: str) -> str:
    out = StringIO()
    with pytest.raises(CommandError, match="not sound"):
        call_command("verify_ledger", *arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


def spoil(statement: str) -> None:
    """Change rows behind the ORM's back; `{second}` is the second event's key."""
    with connection.cursor() as cursor:
        cursor.execute(statement.format(second="(SELECT id FROM market_ledgerevent WHERE event_id = 'earned:b:1')"))


def test_it_works(node_id: str) -> None:
    text = verify()
    assert "3 events with 6 entries, 3 batches, 2 days of work" in text
    assert "sound" in text
    assert json.loads(verify("--json"))["is_sound"] is True


def test_an_empty_ledger_is_sound(database: None) -> None:
    assert "0 events" in verify()


def test_a_reversed_event_leaves_the_ledger_sound(node_id: str) -> None:
    reverse("earned:b:0", "counted twice")
    assert "4 events" in verify()


def test_an_event_that_does_not_sum_to_zero(node_id: str) -> None:
    spoil("UPDATE market_ledgerentry SET microcredits = 5001 WHERE microcredits = 5000 AND event_id = {second}")
    text = findings()
    assert "event earned:b:1: its entries sum to 1, not to zero" in text
    assert f"account node:{node_id}: its balance is 10000, its entries sum to 10001" in text
    assert "earned: entries sum to 10001, days of work to 10000" in text


def test_an_event_without_entries(node_id: str) -> None:
    spoil("DELETE FROM market_ledgerentry WHERE event_id = {second}")
    assert "event earned:b:1: it has 0 entries, at least 2 are needed" in findings()


def test_an_entry_without_event(node_id: str) -> None:
    if connection.vendor == "sqlite":
        spoil("PRAGMA defer_foreign_keys = ON")
    spoil("DELETE FROM market_ledgerevent WHERE event_id = 'earned:b:1'")
    text = findings()
    assert text.count("its event or its account is missing") == 2


def test_a_balance_that_is_not_the_sum_and_its_rebuilding(node_id: str) -> None:
    spoil("UPDATE market_ledgerbalance SET microcredits = 1")
    assert findings().count("(--rebuild corrects it)") == 3
    assert "sound" in verify("--rebuild")
    assert balance(f"node:{node_id}") == 10_000


def test_days_that_are_not_what_was_paid(node_id: str) -> None:
    spoil("UPDATE market_workday SET microcredits = microcredits + 1 WHERE reason <> ''")
    assert findings().endswith("WRONG  withheld: entries sum to 5000, days of work to 5001\n")


@pytest.mark.parametrize("kind", ["earned", "withheld"])
def test_entries_that_their_kind_never_emits(node_id: str, kind: str) -> None:
    spoil("UPDATE market_ledgerentry SET microcredits = -microcredits")
    assert f"2 entries are not allowed for type {kind}" in findings()


def test_a_kind_that_does_not_exist(node_id: str) -> None:
    spoil("UPDATE market_ledgerevent SET entry_type = 'gift' WHERE event_id = 'earned:b:1'")
    assert "event earned:b:1: unknown type 'gift'" in findings()


def test_many_findings_are_counted_and_some_listed(node_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_check, "MOST_FINDINGS", 2)
    monkeypatch.setattr(ledger_check, "EVENTS_PER_STEP", 1)
    spoil("UPDATE market_ledgerentry SET microcredits = microcredits + 1")
    report = json.loads(findings("--json").splitlines()[0])
    assert (len(report["findings"]), report["is_sound"]) == (2, False)
    assert report["n_findings"] > 3


def test_progress_is_of_all_events(node_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_check, "EVENTS_PER_STEP", 2)
    steps: list[int] = []
    ledger_check.check_ledger(steps.append)
    assert sum(steps) == ledger_check.n_events() == 3
