"""The way of receipts from the engine into SQL. The contracts:

- a batch is on the disk before SQL is asked, and leaves it when SQL has it;
- after a crash at any moment, the next start records what was on the disk once;
- a live process's file is left alone; a line that was never finished is no batch; broken lines are kept and said;
- without a database receipts wait on the disk, without a disk in the book; what SQL will never take does not block;
- who is no node is neither spooled nor paid.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from django.db import OperationalError

from backbone.engine.trust.receipts import Receipt
from backbone.process.receipt_flush import ReceiptFlusher, work_receipts
from backbone.process.receipt_spool import ReceiptSpool, SpoolFullError, read_batches
from market.ledger.entries import WITHHELD, LedgerError
from market.ledger.posting import balance, wrong_balances
from market.ledger.receipts import record
from market.ledger.work_batch import WorkBatch, WorkReceipt
from market.models.ledger import RecordedBatch
from market.nodes.tokens import TokenScope, issue
from tests.site.database import database_at

ROOT = Path(__file__).parents[2]
MODEL = "f" * 64
AT = 1_700_000_000.0
BATCHES = tuple(WorkBatch(f"b:{n}", (WorkReceipt("n1", MODEL, 3, 0, 8, n, AT),)) for n in range(1, 4))


class Sql:
    """Stands for SQL: remembers batches, or fails as told."""

    def __init__(self) -> None:
        self.batches: list[WorkBatch] = []
        self.error: Exception | None = None

    def record(self, batch: WorkBatch) -> None:
        if self.error is not None:
            raise self.error
        self.batches.append(batch)

    @property
    def row_experts(self) -> int:
        return sum(item.row_experts for batch in self.batches for item in batch.receipts)


def receipt(row_experts: int, node_id: str = "n1", reason: str = "") -> Receipt:
    return Receipt(node_id, MODEL, 3, 0, 8, row_experts, AT, reason)


def source(*drains: Sequence[Receipt]) -> Callable[[], Sequence[Receipt]]:
    left = list(drains)
    return lambda: left.pop(0) if left else ()


def flusher(
    directory: Path, sql: Sql, *drains: Sequence[Receipt], owner: str = "b", most: int = 1 << 20
) -> ReceiptFlusher:
    return ReceiptFlusher(owner, source(*drains), ReceiptSpool(directory, owner, most), record=sql.record)


def test_it_works(tmp_path: Path) -> None:
    sql = Sql()
    works = flusher(tmp_path, sql, [receipt(5), receipt(7, "n2")], [], [receipt(9)])
    assert [works.flush() for _ in range(3)] == [True, True, True]
    assert [batch.batch_id for batch in sql.batches] == ["b:1", "b:2"]
    assert sql.row_experts == 21
    assert (tmp_path / "b.jsonl").read_bytes() == b""


def test_a_batch_is_on_the_disk_before_sql_is_asked(tmp_path: Path) -> None:
    seen: list[tuple[WorkBatch, ...]] = []
    spool = ReceiptSpool(tmp_path, "b")
    works = ReceiptFlusher(
        "b", source([receipt(5)]), spool, record=lambda _: seen.append(read_batches(tmp_path / "b.jsonl"))
    )
    works.flush()
    assert [batch.receipts[0].row_experts for batches in seen for batch in batches] == [5]


def test_without_a_database_batches_wait_in_order(tmp_path: Path) -> None:
    sql = Sql()
    works = flusher(tmp_path, sql, [receipt(1)], [receipt(2)], [receipt(3)])
    sql.error = OperationalError("database is locked")
    assert [works.flush(), works.flush()] == [False, False]
    assert [batch.batch_id for batch in read_batches(tmp_path / "b.jsonl")] == ["b:1", "b:2"]
    sql.error = None
    assert works.flush()
    assert [batch.batch_id for batch in sql.batches] == ["b:1", "b:2", "b:3"]


def test_what_a_killed_process_left_is_recorded_by_the_next(tmp_path: Path) -> None:
    sql = Sql()
    sql.error = OperationalError("gone")
    dead = flusher(tmp_path, sql, [receipt(5)], [receipt(6)], owner="dead")
    dead.flush(), dead.flush()
    sql.error = None
    other = flusher(tmp_path, sql, owner="alive")
    assert other.flush()
    assert sql.batches == []  # its process lives: the file is locked
    dead._spool.close()  # as the kernel does
    assert other.flush()
    assert sql.row_experts == 11
    assert not (tmp_path / "dead.jsonl").exists()


def test_an_orphan_stays_when_sql_fails_in_its_middle(tmp_path: Path) -> None:
    spool = ReceiptSpool(tmp_path, "dead")
    for batch in BATCHES:
        spool.append(batch)
    spool.close()
    taken: list[str] = []

    def fail_once(batch: WorkBatch) -> None:
        if len(taken) == 1:
            taken.append("failed")
            raise OperationalError("gone")
        taken.append(batch.batch_id)

    works = ReceiptFlusher("alive", source(), ReceiptSpool(tmp_path, "alive"), record=fail_once)
    assert [works.flush(), works.flush()] == [False, True]
    assert taken == ["b:1", "failed", "b:1", "b:2", "b:3"]


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_line_that_was_never_finished_is_no_batch(tmp_path: Path, cut: int) -> None:
    spool = ReceiptSpool(tmp_path, "dead")
    for batch in BATCHES:
        spool.append(batch)
    spool.close()
    path = tmp_path / "dead.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_batches(path) == BATCHES[:2]
    assert not path.with_suffix(".broken").exists()


def test_a_broken_line_is_kept_and_the_others_count(tmp_path: Path) -> None:
    spool = ReceiptSpool(tmp_path, "dead")
    for batch in BATCHES:
        spool.append(batch)
    spool.close()
    path = tmp_path / "dead.jsonl"
    broken = path.read_bytes().replace(b'"row_experts":2', b'"row_experts":9')
    path.write_bytes(broken)
    sql = Sql()
    assert flusher(tmp_path, sql, owner="alive").flush()
    assert sql.batches == [BATCHES[0], BATCHES[2]]
    assert path.with_suffix(".broken").read_bytes() == broken


def test_a_full_spool_leaves_receipts_in_the_book(tmp_path: Path) -> None:
    sql = Sql()
    drained: list[int] = []

    def drain() -> Sequence[Receipt]:
        drained.append(1)
        return [receipt(1)]

    with pytest.raises(SpoolFullError):
        ReceiptSpool(tmp_path / "other", "b", 10).append(BATCHES[0])
    works = ReceiptFlusher("b", drain, ReceiptSpool(tmp_path, "b", 300), record=sql.record)
    sql.error = OperationalError("gone")
    assert [works.flush() for _ in range(4)] == [False] * 4
    assert len(drained) == 2  # the second batch found no room, and then nothing more was taken
    assert len(read_batches(tmp_path / "b.jsonl")) == 1
    sql.error = None
    assert [works.flush(), works.flush()] == [False, True]  # there was no room once more, and SQL took both
    assert [batch.batch_id for batch in sql.batches] == ["b:1", "b:2", "b:3"]


def test_what_sql_will_never_take_does_not_block_what_follows(tmp_path: Path) -> None:
    sql = Sql()
    works = flusher(tmp_path, sql, [receipt(1)], [receipt(2)])
    sql.error = LedgerError("batch b:1 was recorded before, with other receipts")
    assert works.flush()
    sql.error = None
    assert works.flush()
    assert [batch.batch_id for batch in sql.batches] == ["b:2"]
    assert "recorded before" in (tmp_path / "refused.txt").read_text()


def test_only_receipts_of_nodes_are_taken_with_their_reasons() -> None:
    receipts = [receipt(1, "10.0.0.1:7000"), receipt(2, ""), receipt(3, "3 at wss://site/relay"), receipt(4)]
    taken = list(work_receipts([*receipts, receipt(5, reason="r" * 300)]))
    assert [(item.row_experts, item.reason) for item in taken] == [(4, ""), (5, "r" * 200)]


def test_the_thread_flushes_at_the_stop_and_saves_too(tmp_path: Path) -> None:
    sql, saves = Sql(), list[str]()

    def save() -> None:
        saves.append("saved")
        raise RuntimeError("not this time")  # must not end the thread

    drains = source([], [receipt(7)])
    works = ReceiptFlusher("b", drains, ReceiptSpool(tmp_path, "b"), also=[save], record=sql.record, period_s=3600)
    works.start()
    works.stop()
    assert sql.row_experts == 7
    assert saves == ["saved", "saved"]
    assert list(tmp_path.iterdir()) == []


CHILD = """
import sys
from pathlib import Path
from backbone.process.receipt_spool import ReceiptSpool
from market.ledger.work_batch import WorkBatch, WorkReceipt
spool = ReceiptSpool(Path(sys.argv[1]), "child")
for number in range(1, 1_000_000):
    spool.append(WorkBatch(f"child:{number}", (WorkReceipt(sys.argv[2], "f" * 64, 3, 0, 8, 1, 1.7e9),)))
    print(number, flush=True)
"""


def test_what_a_process_had_put_on_the_disk_outlives_its_killing(tmp_path: Path, database: None) -> None:
    node_id = issue(TokenScope.WORKER, "n").public_id
    command = [sys.executable, "-c", CHILD, str(tmp_path / "receipts"), node_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        while int(child.stdout.readline()) < 20:
            pass
        child.kill()
        n_said = max([20, *(int(line) for line in child.stdout.read().split("\n")[:-1] if line)])
    next_one = ReceiptFlusher("next", source(), ReceiptSpool(tmp_path / "receipts", "next"))
    assert next_one.flush() and next_one.flush()
    n_recorded = RecordedBatch.objects.count()
    assert n_said <= n_recorded <= n_said + 1
    assert balance(f"node:{node_id}") == 1000 * n_recorded


@pytest.fixture
def database(tmp_path: Path) -> Iterator[None]:
    with database_at(tmp_path / "site.sqlite3"):
        yield


def test_a_crash_at_any_step_pays_once(tmp_path: Path, database: None) -> None:
    """Killed before the disk, after it, after SQL, after the disk was cleared: what was on the disk counts once."""
    node_id = issue(TokenScope.WORKER, "n").public_id
    for step, is_paid in enumerate([False, True, True, True]):
        directory, owner = tmp_path / str(step), f"dead-{step}"
        batch = WorkBatch(f"{owner}:1", tuple(work_receipts([receipt(3, node_id), receipt(2, node_id, "lie")])))
        spool = ReceiptSpool(directory, owner)
        before = balance(f"node:{node_id}")
        if step >= 1:
            spool.append(batch)
        if step >= 2:
            record(batch)
        if step >= 3:
            spool.clear()
        spool.close()
        for restart in range(2):
            next_one = ReceiptFlusher(f"next-{step}-{restart}", source(), ReceiptSpool(directory, f"next-{restart}"))
            assert next_one.flush()
        assert balance(f"node:{node_id}") - before == (3000 if is_paid else 0)
    assert (balance(WITHHELD), RecordedBatch.objects.count()) == (6000, 3)
    assert wrong_balances() == []
