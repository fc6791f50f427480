"""Manifests of slices: the SHA-256 of their experts, the layout of the slice, and where else its bytes are.

`slices.server` answers requests with them. Each digest is computed once and kept in a directory between starts: one
file for each layer, in the manifest's format, under a name made from the sizes and times of the model's files, so that
no digest outlives a replaced file. Calls block: make them from threads.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

from kvasir.errors import SliceError
from kvasir.experts import ExpertRange
from kvasir.slicing.expert_places import digest_places, expert_places
from kvasir.slicing.expert_tensors import find_expert_tensors
from kvasir.slicing.manifest import ExpertDigest, ExpertKey, Manifest
from kvasir.slicing.slice_plan import SlicePlan
from relay.slices.planning import OpenModel, PlannedSlice

_PART_NAME = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.ASCII)

log = logging.getLogger(__name__)


class DigestBook:
    """Known digests. `directory` is created when the first one is saved."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._folder = ""  # the name of the model's files that `_layers` belongs to
        self._layers: dict[int, dict[ExpertKey, ExpertDigest]] = {}

    def lookup(self, planned: PlannedSlice) -> Manifest | None:
        """Return the digests of a slice's experts, or None unless all are known. Reads no weights."""
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
        """Return the digests of a slice's experts, and compute those that are missing. Call it from one thread only.

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
        folder = f"{model.card.fingerprint[:16]}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"
        if folder != self._folder:
            self._folder = folder
            self._layers = {}

    def _file(self, layer: int) -> Path:
        return self._directory / self._folder / f"layer-{layer}.json"

    def _known(self, model: OpenModel, layer: int) -> dict[ExpertKey, ExpertDigest]:
        if layer not in self._layers:
            self._layers[layer] = {}
            if self._file(layer).exists():
                try:
                    saved = Manifest.load(self._file(layer))
                    if saved.model_fingerprint == model.card.fingerprint:
                        self._layers[layer] = dict(saved.experts)
                except SliceError as error:
                    log.warning("a saved manifest cannot be read and is computed again: %s", error)
        return self._layers[layer]

    def _save(self, model: OpenModel, layer: int) -> None:
        """Save a layer's digests. After a failure they are only computed again at the next start."""
        path = self._file(layer)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            Manifest(model.card.name, model.card.fingerprint, self._layers[layer]).save(path)
        except (OSError, SliceError) as error:
            log.warning("digests of layer %d cannot be saved: %s", layer, error)


def _computed(model: OpenModel, plan: SlicePlan, keys: list[ExpertKey]) -> dict[ExpertKey, ExpertDigest]:
    tensors = find_expert_tensors(model.index, model.card.n_layer)
    with ExitStack() as stack:
        files: dict[int, int] = {}

        def descriptor_of(part: int) -> int:
            if part not in files:
                files[part] = stack.enter_context(plan.open_part(part)).fileno()
            return files[part]

        return {key: digest_places(expert_places(tensors[key.layer], key.expert), descriptor_of) for key in keys}


def manifest_answer(planned: PlannedSlice, manifest: Manifest, origin_url: str) -> bytes:
    """Return the JSON of a manifest request.

    `slice` has size, entity tag, header and the places of the weights, so that a worker can check whether they fit, and
    fetch and repair any part. `origin` has the same weights, in the same order, as byte ranges of the model's own files
    on another server: `origin_url` is the address of its (first) file, or "" when there is none.
    """
    plan = planned.plan
    experts = ",".join(f"{item.layer}:{item.start}-{item.stop}" for item in plan.ranges)
    content = manifest.content()
    content["slice"] = {
        "url": f"/api/slices/{manifest.model_fingerprint}?experts={quote(experts, safe=':,-')}",
        "etag": planned.etag,
        "bytes": plan.n_bytes,
        "header_bytes": len(plan.header),
        "header_sha256": hashlib.sha256(plan.header).hexdigest(),
        "pieces": [[item.position, item.n_bytes] for item in plan.byte_ranges],
    }
    if origin_url:
        content["origin"] = {
            "url": origin_url,
            "ranges": [[item.offset, item.n_bytes] for item in plan.byte_ranges],
            "urls": part_urls(origin_url, len(plan.parts)),
            "parts": [item.part for item in plan.byte_ranges],
            "part_bytes": [part.n_bytes for part in plan.parts],
        }
    return json.dumps(content, separators=(",", ":")).encode()


def part_urls(origin_url: str, n_parts: int) -> list[str]:
    """Return the addresses of a model's files, given the first. One without a part number is that of a single file."""
    if n_parts == 1 or not _PART_NAME.search(origin_url):
        return [origin_url] * n_parts
    stem = _PART_NAME.sub("", origin_url)
    return [f"{stem}-{number:05d}-of-{n_parts:05d}.gguf" for number in range(1, n_parts + 1)]
