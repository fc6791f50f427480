"""The usage of edges: one record in the log and one in SQL for each edge that has ended.

The hub adds them; a thread writes them in batches, so that no frame waits for a database. They are for operators;
rewards are computed from receipts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from relay.sockets.bridge import Traffic

MAX_WAITING = 10_000  # records that wait for the database; further ones are only logged
MOOD_CHARACTERS = 200  # the room of its column

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Usage:
    """One edge that has ended, with the columns of EdgeUsage. Tokens are given by their public ids."""

    relay_id: str
    edge: int
    backbone_token: str
    worker_token: str
    began: datetime
    seconds: float
    traffic: Traffic
    mood: str


class UsageBook:
    """The records that are not in SQL yet."""

    def __init__(self) -> None:
        self._waiting: list[Usage] = []

    def add(self, usage: Usage) -> None:
        """Log a record and keep it until the next `take`."""
        log.info("usage: %s", usage)
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(usage)

    def take(self) -> list[Usage]:
        """Remove and return the records that wait."""
        taken, self._waiting = self._waiting, []
        return taken

    def put_back(self, records: Sequence[Usage]) -> None:
        """Put back records that could not be written."""
        self._waiting = [*records, *self._waiting][:MAX_WAITING]


def write_usage(records: Sequence[Usage]) -> None:
    """Write records to SQL. Blocks."""
    from relay.models import EdgeUsage

    rows = [asdict(usage) | {"mood": usage.mood[:MOOD_CHARACTERS]} for usage in records]
    EdgeUsage.objects.bulk_create(EdgeUsage(**row.pop("traffic"), **row) for row in rows)
