"""Receipts on their way from a backbone to the ledger: a batch with an id, written as one JSON line.

Made by `backbone.process.receipt_flush`, kept by `backbone.process.receipt_spool`, recorded by
`market.ledger.receipts`. Plain values: no Django, no engine. A batch keeps its id, so repeats are harmless.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, fields

from kvasir.errors import KvasirError

DAY_S = 86_400
MOST_ROW_EXPERTS = 1 << 40  # of one receipt
MOST_EXPERTS = 1 << 16  # of a layer
LONGEST_BATCH_ID = 140
LONGEST_NODE_ID = 64
LONGEST_REASON = 200


class WorkError(KvasirError):
    """An invalid batch; the message names the wrong value. A retry does not help."""


@dataclass(frozen=True, slots=True)
class WorkReceipt:
    """Row-experts that a node computed for one range of experts, as one backbone settled them; unpaid with a `reason`.

    It is the fact that comes in; `market.models.work.WorkDay` is the sum of all receipts of a day, with their pay.
    """

    node_id: str
    fingerprint: str
    layer: int
    start: int
    stop: int
    row_experts: int
    at: float  # Unix seconds of the last row
    reason: str = ""  # of not paying it

    def __post_init__(self) -> None:
        """Raises WorkError."""
        texts = (self.node_id, LONGEST_NODE_ID), (self.fingerprint, 64), (self.reason, LONGEST_REASON)
        if not self.node_id or any(not isinstance(text, str) or len(text) > most for text, most in texts):
            raise WorkError(f"receipt of node {self.node_id!r}: a text of it is empty or too long")
        numbers = (self.layer, self.start, self.stop, self.row_experts)
        if any(type(number) is not int for number in numbers) or not math.isfinite(self.at) or self.at < 0:
            raise WorkError(f"receipt of node {self.node_id}: {numbers} and {self.at!r} must be numbers")
        if not (0 <= self.layer < 1 << 31 and 0 <= self.start < self.stop <= MOST_EXPERTS):
            raise WorkError(f"receipt of node {self.node_id}: {self.layer}:{self.start}-{self.stop} is not a range")
        if not 0 < self.row_experts <= MOST_ROW_EXPERTS:
            raise WorkError(f"receipt of node {self.node_id}: {self.row_experts} row-experts, 1 to 2^40 are allowed")

    @property
    def day(self) -> int:
        """Days from 1970-01-01 UTC to `at`."""
        return int(self.at // DAY_S)


@dataclass(frozen=True, slots=True)
class WorkBatch:
    """The receipts that one backbone settled in a few seconds. `batch_id` is the backbone's id and a counter."""

    batch_id: str
    receipts: tuple[WorkReceipt, ...]

    def __post_init__(self) -> None:
        """Raises WorkError."""
        if not isinstance(self.batch_id, str) or not 0 < len(self.batch_id) <= LONGEST_BATCH_ID:
            raise WorkError(f"batch id {self.batch_id!r}: 1 to {LONGEST_BATCH_ID} characters are needed")

    def to_json(self) -> str:
        """Return the batch as one line; equal batches give equal lines."""
        values = {"batch_id": self.batch_id, "receipts": [asdict(receipt) for receipt in self.receipts]}
        return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> WorkBatch:
        """Parse a line of `to_json`. Raises WorkError when it is malformed."""
        try:
            values = json.loads(text)
            receipts = tuple(WorkReceipt(**receipt) for receipt in values.pop("receipts"))
            return cls(receipts=receipts, **values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            names = ", ".join(field.name for field in fields(WorkReceipt))
            raise WorkError(f"not a batch of receipts ({names}): {error}") from error

    @property
    def digest(self) -> str:
        """The SHA-256 of the batch: a replay has the same one, another batch with the same id does not."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()
