"""Remembers nodes' last answers, so that an old one that comes again for another question is seen at once.

The `guard` asks for every answer and confirms what was seen before. Nobody is blamed here: two questions may have the
same right answer.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from backbone.engine.trust.audit import Reply

MAX_ANSWERS = 4096  # of each node
MAX_NODES = 1024


class ReplayMemory:
    """Hashes of questions by hashes of answers, for each node. Bounded: the oldest are forgotten first."""

    def __init__(self, max_answers: int = MAX_ANSWERS, max_nodes: int = MAX_NODES) -> None:
        self._max_answers = max_answers
        self._max_nodes = max_nodes
        self._lock = threading.Lock()
        self._nodes: OrderedDict[str, OrderedDict[int, int]] = OrderedDict()

    def is_old(self, node_id: str, reply: Reply) -> bool:
        """Whether the node gave these very outputs before, for another question; remembers them if it did not."""
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
