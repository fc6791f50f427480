"""Checks of a worker's answers: samples, random draws, replays, comparison with right answers, and evidence.

`guard` decides which answers are checked and what follows. The backbone's own replica is the judge: with KX1 any two
devices agree to the bit, so one different bit proves a wrong answer.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.placement import IntArray
from backbone.engine.swarm.reply_format import ReplyFormat, round_replies
from kvasir.experts import FloatRows
from kvasir.kernels.api import EncodedRows, RowFormat
from kvasir.kernels.sums import RowSums, sum_outputs
from kvasir.wire.frames import SumOrder

KEY_BYTES = 32
MAX_ANSWERS = 4096  # of each node
MAX_NODES = 1024
MAX_EVIDENCE_EXPERTS = 64
FLOAT_TOLERANCE = 1e-3  # of the largest value of a row
FLOAT_MIN_COSINE = 0.9999


Answer = FloatRows | RowSums  # one output a pair [n_pairs, d_model], or one row of sums a row [n_rows, d_model]


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """Some pairs of a layer and a worker's answer for them, rounded as on the wire.

    With an `order` the answer is sums: then each row comes with all of its pairs that were sent to the worker.
    """

    worker_id: str
    layer: int
    rows: EncodedRows  # [n_rows, row_bytes]
    pair_rows: IntArray  # [n_pairs] index into rows
    expert_ids: IntArray  # [n_pairs] the model's expert ids
    outputs: Answer
    order: SumOrder | None = None

    @property
    def n_pairs(self) -> int:
        """Return the number of row-experts."""
        return len(self.expert_ids)

    def places(self, pairs: IntArray) -> IntArray:
        """Return the rows of `outputs` that hold the answers for some pairs."""
        return pairs if self.order is None else np.unique(self.pair_rows[pairs]).astype(np.int32)

    def part(self, pairs: IntArray) -> Reply:
        """Copy some of the pairs with only their rows; of sums, all pairs of those rows."""
        if self.order is not None:
            pairs = np.flatnonzero(np.isin(self.pair_rows, self.pair_rows[pairs])).astype(np.int32)
        rows, pair_rows = np.unique(self.pair_rows[pairs], return_inverse=True)
        order = None if self.order is None else SumOrder(self.order.weights[pairs], self.order.exponents[rows])
        return Reply(
            self.worker_id,
            self.layer,
            self.rows[rows],
            pair_rows.astype(np.int32),
            self.expert_ids[pairs].copy(),
            self.outputs[self.places(pairs)].copy(),
            order,
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """Proof of a wrong answer, small enough to be stored and shown to the worker's owner."""

    evidence_id: str
    worker_id: str  # the node's id
    fingerprint: str  # of the model
    kernel: str
    layer: int
    expert_ids: tuple[int, ...]  # those with wrong outputs, at most MAX_EVIDENCE_EXPERTS
    n_pairs: int  # checked
    n_wrong: int
    rows_hash: str  # SHA-256 of the encoded rows that were sent
    expected_hash: str  # of the right outputs, f32 (sums: i32) little-endian
    answered_hash: str
    found_by: str  # "entry test", "confirmation" or "audit"
    at: float  # unix seconds

    def as_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


class Judge:
    """Recompute answers on the backbone's own replica."""

    def __init__(self, store: ExpertStore, reply_format: ReplyFormat = ReplyFormat.F32) -> None:
        self._store = store
        self._reply_format = reply_format
        self._is_exact = store.kernel.row_format is RowFormat.KX1

    def right_outputs(self, reply: Reply) -> Answer:
        """Compute the right answer in the reply's form. Raises KernelError when our own side cannot compute it."""
        computed = self._store.layer(reply.layer).compute(reply.rows, reply.pair_rows, reply.expert_ids)
        if reply.order is not None:
            return sum_outputs(computed, reply.order.weights, reply.pair_rows, reply.order.exponents)
        return round_replies(computed, self._reply_format)

    def wrong_pairs(self, reply: Reply, right: Answer) -> IntArray:
        """Return the indices of the pairs whose outputs are wrong; for a row whose sums are wrong, all its pairs."""
        if reply.outputs.shape != right.shape:
            return np.arange(reply.n_pairs, dtype=np.int32)
        if reply.order is not None:
            return np.flatnonzero(~equal_rows(reply.outputs, right)[reply.pair_rows]).astype(np.int32)
        agrees = equal_rows(reply.outputs, right) if self._is_exact else close_rows(reply.outputs, right)
        return np.flatnonzero(~agrees).astype(np.int32)

    def evidence(self, reply: Reply, right: Answer, found_by: str, at: float) -> Evidence | None:
        """Return proof that the reply is wrong, or None if there is none.

        A wrong reply is recomputed once more: if our own side does not agree with itself, there is no proof.
        """
        wrong = self.wrong_pairs(reply, right)
        if not len(wrong) or not equal_rows(self.right_outputs(reply), right).all():
            return None
        answered = digest(reply.outputs)
        rows_hash = digest(reply.rows)
        experts = sorted(set(reply.expert_ids[wrong].tolist()))
        name = hashlib.sha256(f"{reply.worker_id}:{reply.layer}:{rows_hash}:{answered}:{at!r}".encode())
        return Evidence(
            evidence_id=name.hexdigest()[:32],
            worker_id=reply.worker_id,
            fingerprint=self._store.card.fingerprint,
            kernel=self._store.kernel.name,
            layer=reply.layer,
            expert_ids=tuple(experts[:MAX_EVIDENCE_EXPERTS]),
            n_pairs=reply.n_pairs,
            n_wrong=len(wrong),
            rows_hash=rows_hash,
            expected_hash=digest(right),
            answered_hash=answered,
            found_by=found_by,
            at=at,
        )


class ReplayMemory:
    """Hashes of each node's last answers with those of their questions, to detect an old answer to another question.

    An old answer is no proof: two questions may have the same right answer. The oldest are dropped first.
    """

    def __init__(self, max_answers: int = MAX_ANSWERS, max_nodes: int = MAX_NODES) -> None:
        self._max_answers = max_answers
        self._max_nodes = max_nodes
        self._lock = threading.Lock()
        self._nodes: OrderedDict[str, OrderedDict[int, int]] = OrderedDict()

    def is_old(self, node_id: str, reply: Reply) -> bool:
        """Return whether the node gave the same outputs before, for another question; remember them if it did not."""
        answered = hash(reply.outputs.tobytes())
        order = None if reply.order is None else (reply.order.weights.tobytes(), reply.order.exponents.tobytes())
        asked = hash((reply.layer, reply.expert_ids.tobytes(), reply.rows[reply.pair_rows].tobytes(), order))
        with self._lock:
            known = self._nodes.setdefault(node_id, OrderedDict())
            self._nodes.move_to_end(node_id)
            before = known.setdefault(answered, asked)
            known.move_to_end(answered)
            if len(known) > self._max_answers:
                known.popitem(last=False)
            if len(self._nodes) > self._max_nodes:
                self._nodes.popitem(last=False)
        return before != asked


class SecretDraws:
    """Draws that nobody outside this process can predict: a keyed hash over a counter. Thread-safe.

    The same key always gives the same sequence. It is secret in service and fixed in tests.
    """

    def __init__(self, key: bytes) -> None:
        """`key` has KEY_BYTES random bytes, as from `secrets.token_bytes`."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key has {len(key)} bytes, {KEY_BYTES} are needed")
        self._key = key
        self._lock = threading.Lock()
        self._n_drawn = 0

    def unit(self) -> float:
        """Draw a float in [0, 1)."""
        return (int.from_bytes(self._next()[:8]) >> 11) / 2.0**53

    def generator(self) -> np.random.Generator:
        """Draw a new generator with a seed of 256 bits."""
        return np.random.default_rng(int.from_bytes(self._next()))

    def _next(self) -> bytes:
        with self._lock:
            self._n_drawn += 1
            number = self._n_drawn
        return hashlib.blake2b(number.to_bytes(8), key=self._key, digest_size=32).digest()


def equal_rows(one: Answer, other: Answer) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows are equal to the bit: bool [n]."""
    bits = (np.ascontiguousarray(a).view(np.uint32) for a in (one, other))
    return np.asarray(np.equal(*bits).all(axis=1))


def close_rows(one: Answer, right: Answer) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows are right within the float kernel's tolerance, or equal to the bit: bool [n]."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        a, b = one.astype(np.float64), right.astype(np.float64)
        is_near = np.abs(a - b).max(axis=1) <= FLOAT_TOLERANCE * np.abs(b).max(axis=1)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        is_aligned = (a * b).sum(axis=1) >= FLOAT_MIN_COSINE * lengths
    return np.asarray((is_near & is_aligned) | equal_rows(one, right))


def digest(array: EncodedRows | Answer) -> str:
    """Return the SHA-256 of an array's bytes, little-endian."""
    plain = array.astype(array.dtype.newbyteorder("<"))
    return hashlib.sha256(np.ascontiguousarray(plain).tobytes()).hexdigest()
