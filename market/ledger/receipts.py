"""Record batches of receipts: each becomes days of work and ledger events in one transaction.

Called by `backbone.process.receipt_flush`. A batch counts once, independent of its sender, of repeats and of the order
of batches. Only nodes with a worker's token are paid; receipts of workers dialled at an address are left out.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from django.db import IntegrityError, connection

from market.ledger.entries import LedgerError, node_account, owner_account
from market.ledger.posting import post
from market.ledger.quotes import quotes_of
from market.ledger.rewards import Priced, events, price
from market.ledger.work_batch import WorkBatch
from market.models.ledger import RecordedBatch
from market.models.nodes import NodeToken
from market.nodes.tokens import TokenScope
from market.settings import MarketSettings
from market.sql import in_transaction, name_batches

logger = logging.getLogger(__name__)

_ADD = (
    "INSERT INTO market_workday (node_id, day, fingerprint, layer, start, stop, reason, row_experts, microcredits) "
    "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) "
    "ON CONFLICT (node_id, day, fingerprint, layer, start, stop, reason) DO UPDATE SET "
    "row_experts = market_workday.row_experts + excluded.row_experts, "
    "microcredits = market_workday.microcredits + excluded.microcredits"
)


def record(batch: WorkBatch) -> bool:
    """Record a batch. Returns False when it was recorded before; nothing changes then.

    Raises LedgerError when its id was used for another batch or an amount is invalid (a retry does not help), and
    django.db.Error when SQL cannot be written now.
    """
    try:
        return in_transaction(lambda: _record(batch))
    except IntegrityError:
        # another writer recorded the same batch at the same time
        if not _was_recorded(batch):
            raise
        return False


def _record(batch: WorkBatch) -> bool:
    if _was_recorded(batch):
        return False
    RecordedBatch.objects.create(batch_id=batch.batch_id, digest=batch.digest)
    accounts = accounts_of(receipt.node_id for receipt in batch.receipts)
    known = WorkBatch(batch.batch_id, tuple(item for item in batch.receipts if item.node_id in accounts))
    if n_left_out := len(batch.receipts) - len(known.receipts):
        logger.info("batch %s: %d receipts are not of worker nodes and are left out", batch.batch_id, n_left_out)
    priced = price(known, quotes_of(accounts), MarketSettings.from_django().rate_microcredits)
    posted = events(batch.batch_id, priced, accounts)
    _add_days(priced)
    for event in posted:
        post(event)
    return True


def accounts_of(node_ids: Iterable[str]) -> dict[str, str]:
    """Return the ledger account of each node. Ids that are not of worker nodes are left out."""
    found: dict[str, str] = {}
    for names in name_batches(node_ids):
        rows = NodeToken.objects.filter(public_id__in=names, scope=TokenScope.WORKER)
        for node_id, account_id in rows.values_list("public_id", "account__public_id"):
            found[node_id] = owner_account(account_id) if account_id else node_account(node_id)
    return found


def _was_recorded(batch: WorkBatch) -> bool:
    digest = RecordedBatch.objects.filter(batch_id=batch.batch_id).values_list("digest", flat=True).first()
    if digest is not None and digest != batch.digest:
        raise LedgerError(f"batch {batch.batch_id} was recorded before, with other receipts")
    return digest is not None


def _add_days(priced: Sequence[Priced]) -> None:
    """Add to the days of work. All writers use the same order of rows, so that they do not deadlock."""
    rows: Counter[tuple[str, int, str, int, int, int, str]] = Counter()
    pay: Counter[tuple[str, int, str, int, int, int, str]] = Counter()
    for work in priced:
        item = work.receipt
        place = (item.node_id, item.day, item.fingerprint, item.layer, item.start, item.stop, item.reason)
        rows[place] += item.row_experts
        pay[place] += work.microcredits
    with connection.cursor() as cursor:
        cursor.executemany(_ADD, [(*place, rows[place], pay[place]) for place in sorted(rows)])
