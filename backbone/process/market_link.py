"""The backbone process's link to the market: checks of workers' answers, receipts, trust, records, traffic.

`backbone_process` makes one and gives its guard to the dispatcher. Receipts and trust go to SQL, traffic and records to
Redis; an outage of either never stops a generation.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable

from redis import Redis
from redis.exceptions import RedisError

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.edge_pool import EdgePool
from backbone.engine.swarm.reply_format import ReplyFormat
from backbone.engine.swarm.transport import Transport
from backbone.engine.trust.audit import KEY_BYTES
from backbone.engine.trust.entry_tests import WorkerAccess
from backbone.engine.trust.guard import WorkGuard
from backbone.engine.trust.receipts import TrafficCounter
from backbone.process.receipt_flush import ReceiptFlusher
from backbone.process.receipt_spool import ReceiptSpool
from backbone.process.record_keeper import RecordKeeper
from backbone.process.trust_keeper import SqlTrustKeeper, learn
from backbone.service_settings import ServiceSettings
from market.coverage.traffic import TrafficMeter, publish_traffic

logger = logging.getLogger(__name__)

FIRST_TESTS_S = 5.0  # how long the start waits for tests of workers, so that the first request can use them


class MarketLink:
    """Lives as long as its process: `start` it before the engine, `stop` it after the engine."""

    def __init__(
        self,
        settings: ServiceSettings,
        backbone_id: str,
        loaded: LoadedModel,
        transport: Transport,
        client: Redis,
    ) -> None:
        """Raises OSError if no file can be created in the settings' `receipts_dir`."""
        card = loaded.card
        self._backbone_id = backbone_id
        self._client = client
        self._transport = transport
        self._fingerprint = card.fingerprint
        self.traffic = TrafficCounter(card.n_layer, card.n_expert)
        self._meter = TrafficMeter(card.n_layer, card.n_expert)
        self._counted_at = time.monotonic()
        self.node_of: Callable[[str], str] = transport.node_of if isinstance(transport, EdgePool) else str
        self.guard = WorkGuard(
            loaded.store,
            WorkerAccess(transport, ReplyFormat(settings.reply), self.node_of),
            key=secrets.token_bytes(KEY_BYTES),
            is_strict=settings.strict,
            keeper=SqlTrustKeeper(),
            on_lie=lambda lie: self.records.flag(lie.flagged),
        )
        self.records = RecordKeeper(client, self.guard.exposures, node_of=self.node_of)
        self._flusher = ReceiptFlusher(
            backbone_id,
            self.guard.receipts.drain,
            ReceiptSpool(settings.receipts_dir, backbone_id),
            also=[self.guard.book.save, self.learn, self.records.flush, self.publish],
        )

    def start(self) -> None:
        """Start to record receipts, first those of earlier processes, and test the connected workers."""
        self._flusher.start()
        self.guard.usable(self._transport.live())
        tested = threading.Thread(target=self.guard.settle, name="kvasir-first-tests", daemon=True)
        tested.start()
        tested.join(FIRST_TESTS_S)

    def stop(self) -> None:
        """Settle all work and record it in SQL; receipts that SQL does not take in time stay on disk."""
        try:
            self.guard.close()
        except Exception:  # even without a database the receipts must be kept
            logger.exception("the trust in workers could not be saved")
        self._flusher.stop()

    def learn(self) -> None:
        """Learn from SQL which nodes lied to other backbones, and flag the records. Raises django.db.Error."""
        for node_id, evidence_id in learn(self.guard.book, self.guard.receipts, time.time):
            self.records.flag(self.guard.exposures.flag(node_id, evidence_id))

    def publish(self) -> None:
        """Publish the traffic of each expert for the market."""
        now = time.monotonic()
        rates = self._meter.update(self.traffic.take(), max(now - self._counted_at, 1e-3))
        self._counted_at = now
        try:
            publish_traffic(self._client, self._fingerprint, self._backbone_id, rates, time.time())
        except RedisError as error:
            logger.debug("traffic is not published: %s", error)
