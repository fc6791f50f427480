"""Record what backbones settled: a batch of receipts becomes days of work and ledger events in one transaction.

Called by `backbone.process.receipt_flush`. A batch counts once, whoever sends it, how often, in whatever order batches
come. Only nodes with a worker's token are paid; receipts of anybody else (workers dialled at an address) are left out.
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
from market.sql_retry import MOST_NAMES, in_transaction

logger = logging.getLogger(__name__)

_ADD = (
    "INSERT INTO market_workday (node_id, day, fingerprint, layer, start, stop, reason, row_experts, microcredits) "
    "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) "
    "ON CONFLICT (node_id, day, fingerprint, layer, start, stop, reason) DO UPDATE SET "
    "row_experts = market_workday.row_experts + excluded.row_experts, "
    "microcredits = market_workday.microcredits + excluded.microcredits"
)


def record(batch: WorkBatch) -> bool:
    """Count a batch. False when it was counted before: then nothing has changed.

    Raises LedgerError when its id was used for another batch or an amount cannot be (sending it again does not help),
    and django.db.Error when SQL cannot be written now.
    """
    try:
        return in_transaction(lambda: _record(batch))
    except IntegrityError:
        # another writer had the same batch at the same moment, and was first
        if not _was_recorded(batch):
            raise
        return False


def _record(batch: WorkBatch) -> bool:
    if _was_recorded(batch):
        return False
    RecordedBatch.objects.create(batch_id=batch.batch_id, digest=batch.digest)
    accounts = accounts_of(receipt.node_id for receipt in batch.receipts)
    known = WorkBatch(batch.batch_id, tuple(item for item in batch.receipts if item.node_id in accounts))
    if len(known.receipts) < len(batch.receipts):
        logger.info("batch %s: %d receipts are of no node", batch.batch_id, len(batch.receipts) - len(known.receipts))
    priced = price(known, quotes_of(accounts), MarketSettings.from_django().rate_microcredits)
    posted = events(batch.batch_id, priced, accounts)
    _add_days(priced)
    for event in posted:
        post(event)
    return True


def accounts_of(node_ids: Iterable[str]) -> dict[str, str]:
    """The ledger account that each node earns for. Who is no worker node is left out."""
    wanted, found = sorted(set(node_ids)), dict[str, str]()
    for first in range(0, len(wanted), MOST_NAMES):
        rows = NodeToken.objects.filter(public_id__in=wanted[first : first + MOST_NAMES], scope=TokenScope.WORKER)
        for node_id, account_id in rows.values_list("public_id", "account__public_id"):
            found[node_id] = owner_account(account_id) if account_id else node_account(node_id)
    return found


def _was_recorded(batch: WorkBatch) -> bool:
    digest = RecordedBatch.objects.filter(batch_id=batch.batch_id).values_list("digest", flat=True).first()
    if digest is not None and digest != batch.digest:
        raise LedgerError(f"batch {batch.batch_id} was recorded before, with other receipts")
    return digest is not None


def _add_days(priced: Sequence[Priced]) -> None:
    """Add to the days, in one order for all writers so that no two wait for each other."""
    rows: Counter[tuple[str, int, str, int, int, int, str]] = Counter()
    pay: Counter[tuple[str, int, str, int, int, int, str]] = Counter()
    for work in priced:
        item = work.receipt
        place = (item.node_id, item.day, item.fingerprint, item.layer, item.start, item.stop, item.reason)
        rows[place] += item.row_experts
        pay[place] += work.microcredits
    with connection.cursor() as cursor:
        cursor.executemany(_ADD, [(*place, rows[place], pay[place]) for place in sorted(rows)])
