"""What ties a backbone process to the market: whose work is checked, paid and remembered, and what traffic it sees.

`backbone_process` makes one: the guard goes to its dispatchers, receipts and trust to SQL, traffic to Redis. Losing
either never stops a generation.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import Transport
from backbone.engine.trust.draws import KEY_BYTES
from backbone.engine.trust.guard import Lie, WorkGuard
from backbone.engine.trust.receipts import TrafficCounter
from backbone.process.receipt_flush import ReceiptFlusher
from backbone.process.receipt_spool import ReceiptSpool
from backbone.process.record_keeper import RecordKeeper
from backbone.process.trust_keeper import SqlTrustKeeper, learn
from backbone.service_settings import ServiceSettings
from market.coverage.traffic import TrafficMeter, publish_traffic

logger = logging.getLogger(__name__)

FIRST_TESTS_S = 5.0  # how long the start waits, so that the first request already finds workers


class MarketLink:
    """Lives as long as its process: `start` it before the engine steps, `stop` it when the engine has stopped."""

    def __init__(
        self,
        settings: ServiceSettings,
        backbone_id: str,
        loaded: LoadedModel,
        transport: Transport,
        client: Redis,
        receipts_dir: Path,
    ) -> None:
        """Raises OSError when there can be no file in `receipts_dir`."""
        card = loaded.card
        self._backbone_id = backbone_id
        self._client = client
        self._transport = transport
        self._fingerprint = card.fingerprint
        self.traffic = TrafficCounter(card.n_layer, card.n_expert)
        self._meter = TrafficMeter(card.n_layer, card.n_expert)
        self._counted_at = time.monotonic()
        self.guard = WorkGuard(
            loaded.store,
            transport,
            key=secrets.token_bytes(KEY_BYTES),
            is_strict=settings.strict,
            keeper=SqlTrustKeeper(),
            on_lie=self._note_lie,
        )
        self.records = RecordKeeper(client, self.guard.exposures, node_of=transport.node_of)
        self._flusher = ReceiptFlusher(
            backbone_id,
            self.guard.receipts.drain,
            ReceiptSpool(receipts_dir, backbone_id),
            also=[self.guard.book.save, self.learn, self.records.flush, self.publish],
        )

    def start(self) -> None:
        """Begin with what earlier processes left behind, and test the workers that are here already."""
        self._flusher.start()
        self.guard.usable(self._transport.live())
        tested = threading.Thread(target=self.guard.settle, name="kvasir-first-tests", daemon=True)
        tested.start()
        tested.join(FIRST_TESTS_S)

    def stop(self) -> None:
        """Settle all work, then bring it to SQL; what SQL does not take in time stays on the disk."""
        try:
            self.guard.close()
        except Exception:  # the database may be away, and the receipts must be kept all the same
            logger.exception("what is known of the workers could not be saved")
        self._flusher.stop()

    def learn(self) -> None:
        """Hear of what other backbones found out about nodes. Raises django.db.Error."""
        for node_id, evidence_id in learn(self.guard.book, self.guard.receipts, time.time):
            self.records.flag(self.guard.exposures.flag(node_id, evidence_id))

    def _note_lie(self, lie: Lie) -> None:
        self.records.flag(lie.flagged)

    def publish(self) -> None:
        """Tell the market how often each expert is called."""
        now = time.monotonic()
        rates = self._meter.update(self.traffic.take(), max(now - self._counted_at, 1e-3))
        self._counted_at = now
        try:
            publish_traffic(self._client, self._fingerprint, self._backbone_id, rates, time.time())
        except RedisError as error:
            logger.debug("traffic is not published: %s", error)
