"""SHA-256 of a model's experts: computed once each, by reading, and kept in a directory between starts.

`slices.manifests` asks. One file per layer, in the manifest's own format, under a name that stands for the model's
files as they are now: after a file was replaced nothing of before is believed. Calls block: make them from threads.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from kvasir.errors import SliceError
from kvasir.experts import ExpertRange
from kvasir.slicing.expert_tensors import expert_places, find_expert_tensors
from kvasir.slicing.manifest import ExpertDigest, ExpertKey, Manifest, digest_places
from kvasir.slicing.slices import SlicePlan
from relay.slices.planning import OpenModel, PlannedSlice

log = logging.getLogger(__name__)


class DigestBook:
    """Digests that are known. `directory` is made when something is first written there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._shelf = ""  # the model's files that `_layers` is of
        self._layers: dict[int, dict[ExpertKey, ExpertDigest]] = {}

    def lookup(self, planned: PlannedSlice) -> Manifest | None:
        """Digests of a slice's experts when all of them are known; quick."""
        model = planned.model
        with self._lock:
            self._turn_to(model)
            known = {
                key: digest
                for item in planned.plan.ranges
                for key, digest in self._digests_in(model, item)
                if digest is not None
            }
        if len(known) < sum(item.n_experts for item in planned.plan.ranges):
            return None
        return Manifest(model.card.name, model.card.fingerprint, known)

    def manifest(self, planned: PlannedSlice) -> Manifest:
        """Digests of a slice's experts; those that are not known are computed. For one thread alone.

        Raises GGUFError when the model's files cannot be read or have changed.
        """
        model = planned.model
        found: dict[ExpertKey, ExpertDigest] = {}
        for item in planned.plan.ranges:
            with self._lock:
                self._turn_to(model)
                digests = dict(self._digests_in(model, item))
            missing = [key for key, digest in digests.items() if digest is None]
            new = _computed(model, planned.plan, missing) if missing else {}
            found |= {key: digest for key, digest in digests.items() if digest is not None} | new
            if new:
                with self._lock:
                    self._turn_to(model)
                    self._known(model, item.layer).update(new)
                    self._save(model, item.layer)
        return Manifest(model.card.name, model.card.fingerprint, found)

    def _digests_in(self, model: OpenModel, item: ExpertRange) -> Iterable[tuple[ExpertKey, ExpertDigest | None]]:
        known = self._known(model, item.layer)
        for expert in range(item.start, item.stop):
            key = ExpertKey(item.layer, expert)
            yield key, known.get(key)

    def _turn_to(self, model: OpenModel) -> None:
        facts = ",".join(f"{part.n_bytes}:{part.mtime_ns}" for part in model.index.part_files)
        shelf = f"{model.card.fingerprint[:16]}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"
        if shelf != self._shelf:
            self._shelf = shelf
            self._layers = {}

    def _file(self, layer: int) -> Path:
        return self._directory / self._shelf / f"layer-{layer}.json"

    def _known(self, model: OpenModel, layer: int) -> dict[ExpertKey, ExpertDigest]:
        if layer not in self._layers:
            self._layers[layer] = {}
            if self._file(layer).exists():
                try:
                    saved = Manifest.load(self._file(layer))
                    if saved.model_fingerprint == model.card.fingerprint:
                        self._layers[layer] = dict(saved.experts)
                except SliceError as error:
                    log.warning("a saved manifest cannot be used and is computed again: %s", error)
        return self._layers[layer]

    def _save(self, model: OpenModel, layer: int) -> None:
        """What cannot be saved is computed again after the next start, no more."""
        path = self._file(layer)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            Manifest(model.card.name, model.card.fingerprint, self._layers[layer]).save(path)
        except (OSError, SliceError) as error:
            log.warning("digests of layer %d are not kept: %s", layer, error)


def _computed(model: OpenModel, plan: SlicePlan, keys: list[ExpertKey]) -> dict[ExpertKey, ExpertDigest]:
    tensors = find_expert_tensors(model.index, model.card.n_layer)
    with ExitStack() as stack:
        files: dict[int, int] = {}

        def descriptor_of(part: int) -> int:
            if part not in files:
                files[part] = stack.enter_context(plan.open_part(part)).fileno()
            return files[part]

        return {key: digest_places(expert_places(tensors[key.layer], key.expert), descriptor_of) for key in keys}
