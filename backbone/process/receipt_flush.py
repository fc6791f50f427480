"""A thread that moves the engine's receipts to the ledger: it drains the book, spools each batch, records it in SQL.

`market_link` starts one. Every PERIOD_S and at the stop, batches go to disk, then to SQL, then off the disk. Without
SQL they wait on disk; with a full disk the receipts stay summed in the book. Nothing here stops a generation.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace

from django.db import Error, close_old_connections, connection

from backbone.engine.trust.receipts import Receipt
from backbone.process.receipt_spool import ReceiptSpool
from backbone.process.trust_keeper import is_node
from kvasir.errors import KvasirError
from market.ledger.entries import LedgerError
from market.ledger.receipts import record as record_in_sql
from market.ledger.work_batch import LONGEST_REASON, WorkBatch, WorkReceipt

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
RECEIPTS_PER_BATCH = 2000


class ReceiptFlusher:
    """Owns the spool. `stop` it after the last receipt."""

    def __init__(
        self,
        backbone_id: str,
        drain: Callable[[], Sequence[Receipt]],
        spool: ReceiptSpool,
        *,
        also: Sequence[Callable[[], object]] = (),
        record: Callable[[WorkBatch], object] = record_in_sql,
        period_s: float = PERIOD_S,
    ) -> None:
        """`drain` returns the receipts settled since its last call. Each round also calls the functions in `also`."""
        self._backbone_id = backbone_id
        self._drain = drain
        self._spool = spool
        self._also = also
        self._record = record
        self._period_s = period_s
        self._n_batches = 0
        self._unspooled: list[WorkBatch] = []
        self._unrecorded: list[WorkBatch] = []
        self._problem = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvasir-receipts", daemon=True)

    def start(self) -> None:
        """Start the thread, which first records what earlier processes left on disk."""
        self._thread.start()

    def stop(self, deadline_s: float = 10.0) -> None:
        """Flush once more and stop. What SQL does not take in time stays on disk for the next start."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(deadline_s)
        if not self._thread.is_alive():
            self._spool.close()

    def flush(self) -> bool:
        """Flush once; return whether SQL has all receipts. Errors of disk and database are logged, not raised."""
        problem = "; ".join(filter(None, (self._put_on_disk(), self._put_in_sql())))
        if problem and problem != self._problem:
            logger.error("%s; trying again every %g s", problem, self._period_s)
        elif self._problem and not problem:
            logger.warning("receipts are recorded again")
        self._problem = problem
        return not self._unrecorded and not problem

    def _put_on_disk(self) -> str:
        """Return the problem, or an empty text."""
        try:
            self._take()
            for batch in self._unspooled[:]:
                self._spool.append(batch)
                self._unspooled.remove(batch)
        except OSError as error:
            return f"receipts cannot be written to disk: {error}"
        return ""

    def _put_in_sql(self) -> str:
        try:
            self._record_all()
            self._adopt_orphans()
        except (Error, OSError) as error:
            return f"receipts wait for the database: {type(error).__name__}: {error}"
        return ""

    def _take(self) -> None:
        """Drain the book, unless earlier batches are not on disk yet: the book sums receipts, a list would grow."""
        if self._unspooled:
            return
        receipts = list(work_receipts(self._drain()))
        for first in range(0, len(receipts), RECEIPTS_PER_BATCH):
            self._n_batches += 1
            part = tuple(receipts[first : first + RECEIPTS_PER_BATCH])
            batch = WorkBatch(f"{self._backbone_id}:{self._n_batches}", part)
            self._unspooled.append(batch)
            self._unrecorded.append(batch)

    def _record_all(self) -> None:
        while self._unrecorded:
            batch = self._unrecorded[0]
            self._record_one(batch)
            self._unrecorded.pop(0)
            if batch in self._unspooled:
                self._unspooled.remove(batch)
        self._spool.clear()

    def _adopt_orphans(self) -> None:
        for batches in self._spool.orphans():
            for batch in batches:
                self._record_one(batch)
            if batches:
                logger.warning("recorded %d batches of receipts that another process left behind", len(batches))

    def _record_one(self, batch: WorkBatch) -> None:
        try:
            self._record(batch)
        except LedgerError as error:
            logger.error("the ledger refuses batch %s, which is kept in refused.txt: %s", batch.batch_id, error)
            self._spool.refuse(batch, str(error))

    def _run(self) -> None:
        """Flush until the stop, on the thread."""
        self._round()
        while not self._stopping.wait(self._period_s):
            self._round()
        self._round()
        connection.close()

    def _round(self) -> None:
        close_old_connections()
        for call in (self.flush, *self._also):
            try:
                call()
            except Exception:  # top of the thread: the next round may succeed
                logger.exception("a flush of receipts failed")


def work_receipts(receipts: Iterable[Receipt]) -> Iterable[WorkReceipt]:
    """Yield the ledger's receipts of nodes. Workers at an address are not nodes and are not paid."""
    for item in receipts:
        if not is_node(item.node_id):
            continue
        try:
            yield WorkReceipt(**asdict(replace(item, reason=item.reason[:LONGEST_REASON])))
        except KvasirError as error:
            logger.error("a receipt is lost: %s", error)
