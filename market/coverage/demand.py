"""The answer of /api/expert-demand: runs of experts with replicas, target and scarcity, as JSON bytes.

The bytes are cached until the version of the coverage changes, and then only the layers that have changed are written
again. Called by `market.coverage.participation`; one instance per model and process.
"""

from __future__ import annotations

import json
from threading import Lock

import numpy as np

from market.coverage.codec import unpack_counts, unpack_targets
from market.coverage.scarcity import Counts, scarcity_of
from market.coverage.store import CoverageStore
from market.settings import TargetBounds


class Demand:
    """The demand of one model. Threads may share it."""

    def __init__(self, store: CoverageStore, bounds: TargetBounds) -> None:
        self._store = store
        self._bounds = bounds
        self._lock = Lock()
        self._version = -1
        self._answer = b""
        self._rows: dict[int, tuple[bytes, bytes]] = {}  # by layer: replicas and targets, and their JSON

    def answer(self) -> tuple[int, bytes]:
        """Return the version of the coverage and the JSON. Raises Redis's errors."""
        version = self._store.version()
        with self._lock:
            if version != self._version:
                view = self._store.look()
                targets = unpack_targets(view.targets, self._store.facts, self._bounds)
                self._answer = self._write(unpack_counts(view.counts, self._store.facts), targets)
                self._version = view.version
            return self._version, self._answer

    def _write(self, replicas: Counts, targets: Counts) -> bytes:
        facts = self._store.facts
        layers = [self._layer(layer, replicas[layer], targets[layer]) for layer in facts.moe_layers]
        common = {"target_replicas": self._bounds.fewest, "recruiting": bool((replicas < targets).any())}
        model = {"model": facts.name, "fingerprint": facts.fingerprint, "n_layer": facts.n_layer}
        head, tail = (
            json.dumps({**common, "models": [{**model, "n_expert": facts.n_expert, **common, "layers": []}]}),
            "]}]}",
        )
        return b"".join([head.removesuffix(tail).encode(), b",".join(layers), tail.encode()])

    def _layer(self, layer: int, replicas: Counts, targets: Counts) -> bytes:
        state = replicas.tobytes() + targets.tobytes()
        kept = self._rows.get(layer)
        if kept is not None and kept[0] == state:
            return kept[1]
        written = layer_json(layer, replicas, targets).encode()
        self._rows[layer] = (state, written)
        return written


def layer_json(layer: int, replicas: Counts, targets: Counts) -> str:
    """Return a layer as JSON: runs of experts with equal replicas and targets. The arrays are [n_expert]."""
    changes = np.flatnonzero((np.diff(replicas) != 0) | (np.diff(targets) != 0)) + 1
    starts = [0, *changes.tolist()]
    stops = [*changes.tolist(), len(replicas)]
    have, want = replicas.tolist(), targets.tolist()
    segments = ", ".join(
        f'{{"experts": [{start}, {stop}], "replicas": {have[start]}, "target": {want[start]}, '
        f'"scarcity": {scarcity_of(have[start], want[start])}}}'
        for start, stop in zip(starts, stops, strict=True)
    )
    return f'{{"layer": {layer}, "segments": [{segments}]}}'
