"""Writers of the ledger beside each other, in real transactions: each batch counts once, whole or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import OperationalError, connection

from market.ledger.entries import Event
from market.ledger.posting import balance, wrong_balances
from market.ledger.receipts import record
from market.ledger.work_batch import DAY_S, WorkBatch, WorkReceipt
from market.models.ledger import RecordedBatch
from market.models.nodes import Account
from market.models.work import WorkDay
from market.nodes.tokens import TokenScope, issue
from market.sql import TRIES, in_transaction
from tests.site.database import database_at

MODEL = "f" * 64


@pytest.fixture(autouse=True)
def database(tmp_path: Path) -> Iterator[None]:
    with database_at(tmp_path / "own.sqlite3"):
        yield


def account(public_id: str) -> Account:
    return Account.objects.create(public_id=public_id, digest=bytes(32), name=public_id)


def node(owner: Account | None, scope: TokenScope = TokenScope.WORKER) -> str:
    return issue(scope, "node", account=owner).public_id


def work(node_id: str, row_experts: int = 10, *, reason: str = "", layer: int = 3, day: int = 20_000) -> WorkReceipt:
    return WorkReceipt(node_id, MODEL, layer, 0, 8, row_experts, day * DAY_S + 60.0, reason)


def test_concurrent_writers_count_each_batch_once() -> None:
    node_id = node(account("ann"))
    made = [WorkBatch(f"b:{number}", (work(node_id, number + 1),)) for number in range(6)]
    counted: list[bool] = []
    failures: list[BaseException] = []

    def write(order: list[WorkBatch]) -> None:
        try:
            counted.extend(record(batch) for batch in order)
        except BaseException as error:  # told by the test's own thread
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=write, args=(made[n:] + made[:n],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (len(counted), sum(counted)) == (24, 6)
    assert balance("owner:ann") == 1000 * sum(range(1, 7))
    assert wrong_balances() == []


def test_a_batch_is_recorded_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = WorkBatch("b:1", (work(node(account("ann"))),))

    def fail(_event: Event) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("market.ledger.receipts.post", fail)
        with pytest.raises(KeyboardInterrupt):
            record(batch)
    assert (RecordedBatch.objects.count(), WorkDay.objects.count()) == (0, 0)
    assert record(batch)
    assert balance("owner:ann") == 10_000


def test_a_locked_database_is_tried_again_and_given_up_in_the_end() -> None:
    waits: list[float] = []
    tries = iter([True, True, False])

    def locked() -> str:
        if next(tries, True):
            raise OperationalError("database is locked")
        return "done"

    assert in_transaction(locked, waits.append) == "done"
    assert len(waits) == 2
    with pytest.raises(OperationalError):
        in_transaction(locked, waits.append)
    assert len(waits) == 2 + TRIES - 1
