"""What a new worker must answer before it serves: rows that it has never seen, for experts that it says it holds.

`guard` asks the questions and judges the answers like any other. Rows are drawn from a secret, so that no answer can be
kept from an earlier test.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass

import numpy as np

from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.placement import IntArray, ReplicaMap
from backbone.engine.swarm.transport import Transport
from backbone.engine.trust.audit import Reply
from kvasir.errors import EdgeError
from kvasir.kernels.api import EncodedRows
from kvasir.wire.split import ExpertCall

N_PAIRS = 32  # of one test, spread over the layers
ROW_SCALE = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One row for some experts of a layer."""

    layer: int
    row: EncodedRows  # [1, row_bytes]
    expert_ids: IntArray  # [n_pairs]
    local_ids: IntArray  # [n_pairs] at the worker


def make_questions(
    store: ExpertStore,
    coverage: ReplicaMap,
    worker_id: str,
    generator: np.random.Generator,
    n_pairs: int = N_PAIRS,
) -> tuple[Question, ...]:
    """Questions for at most `n_pairs` experts that a worker holds, chosen evenly over its layers."""
    held: dict[int, list[tuple[int, int]]] = {}
    for (layer, expert_id), replicas in coverage.replicas.items():
        for replica in replicas:
            if replica.worker_id == worker_id:
                held.setdefault(layer, []).append((expert_id, replica.local_id))
    layers = generator.permutation(sorted(held))[:n_pairs]
    per_layer = max(1, n_pairs // max(len(layers), 1))
    questions = []
    for layer in layers.tolist():
        chosen = generator.permutation(np.asarray(held[layer], np.int32))[:per_layer]
        values = generator.standard_normal((1, store.card.d_model), np.float32) * np.float32(ROW_SCALE)
        row = store.kernel.encode_rows(values)
        questions.append(Question(layer, row, chosen[:, 0].copy(), chosen[:, 1].copy()))
    return tuple(questions)


def ask(
    questions: tuple[Question, ...],
    worker_id: str,
    transport: Transport,
    store: ExpertStore,
    deadline_s: float,
) -> Iterator[Reply]:
    """Send all questions and yield the answers. Raises EdgeError when one does not come, whoever is to blame."""
    asked = []
    for question in questions:
        pair_rows = np.zeros(len(question.local_ids), np.int32)
        call = ExpertCall(question.layer, question.row, store.kernel.row_format, pair_rows, question.local_ids)
        asked.append(transport.dispatch(worker_id, call, deadline_s))
    for question, future in zip(questions, asked, strict=True):
        try:
            outputs = future.result(deadline_s + 2.0)
        except (TimeoutError, CancelledError) as error:
            raise EdgeError(f"worker {worker_id}: its entry test was not answered") from error
        pair_rows = np.zeros(len(question.expert_ids), np.int32)
        yield Reply(worker_id, question.layer, question.row, pair_rows, question.expert_ids, outputs)
