"""The manifest: a SHA-256 for each expert, with which every byte of a downloaded slice can be verified.

`kvasir slice --manifest` writes one from the model, `kvasir verify` checks a slice against it; slice servers and
workers use it too. An expert's digest is computed over its gate, up and down weights as stored, then over its gate, up
and down biases (f32) if it has them. It does not depend on whether gate and up are fused in the file, or on the slice.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kvasir.errors import GGUFError, SliceError
from kvasir.experts import ExpertRange, LayerExperts
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.expert_ranges import check_ranges, merge_ranges
from kvasir.slicing.expert_tensors import BytePlace, find_expert_tensors, layer_experts
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slice_file import SliceFile

FORMAT = "kvasir-manifest-1"
ORDER = "gate weights, up weights, down weights, gate bias, up bias, down bias"
MANIFEST_MAX_BYTES = 64 << 20
READ_BYTES = 1 << 20

Progress = Callable[[int, int], None]  # experts hashed so far, experts in all

_KEY = re.compile(r"(?P<layer>0|[1-9]\d{0,5})/(?P<expert>0|[1-9]\d{0,8})", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


class ExpertKey(NamedTuple):
    """One expert of a model; "layer/expert" in the file."""

    layer: int
    expert: int


@dataclass(frozen=True, slots=True)
class ExpertDigest:
    """Size and SHA-256 of one expert's bytes."""

    n_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Digests of experts of one model."""

    model_name: str
    model_fingerprint: str
    experts: Mapping[ExpertKey, ExpertDigest]

    @classmethod
    def of_model(
        cls,
        index: GGUFIndex,
        card: ModelCard,
        ranges: Iterable[ExpertRange] | None = None,
        progress: Progress | None = None,
    ) -> Manifest:
        """Hash experts of an open model: `ranges`, or all. Raises SliceError for a range outside the model."""
        if ranges is None:
            ranges = [ExpertRange(layer, 0, card.n_expert) for layer in card.moe_layers]
        merged = merge_ranges(ranges)
        check_ranges(merged, card)
        tensors = find_expert_tensors(index, card.n_layer)
        layers = {item.layer: layer_experts(index, tensors[item.layer]) for item in merged}
        places = [
            (ExpertKey(item.layer, expert), layers[item.layer], expert)
            for item in merged
            for expert in range(item.start, item.stop)
        ]
        return cls(card.name, card.fingerprint, _digests(places, progress))

    @classmethod
    def of_slice(cls, slice_file: SliceFile, progress: Progress | None = None) -> Manifest:
        """Hash every expert of an open slice."""
        digests = _digests(_slice_places(slice_file), progress)
        return cls(slice_file.model_name, slice_file.model_fingerprint, digests)

    @classmethod
    def load(cls, path: Path | str) -> Manifest:
        """Read a manifest file. Raises SliceError if it is not valid."""
        path = Path(path)
        try:
            if path.stat().st_size > MANIFEST_MAX_BYTES:
                raise SliceError(f"{path}: a manifest has at most {MANIFEST_MAX_BYTES} bytes")
            content = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise SliceError(f"{path}: cannot be read as a manifest ({error})") from error
        return cls.from_content(content, str(path))

    @classmethod
    def from_content(cls, content: object, source: str) -> Manifest:
        """Return the manifest in parsed JSON, ignoring unknown keys. `source` names it in errors.

        Raises SliceError if it is not valid.
        """
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise SliceError(f"{source}: not a manifest: its format is not {FORMAT!r}")
        name, fingerprint, entries = (content.get(key) for key in ("model", "fingerprint", "experts"))
        if not isinstance(name, str) or not isinstance(fingerprint, str) or not isinstance(entries, dict):
            raise SliceError(f"{source}: a manifest needs model, fingerprint and experts")
        return cls(name, fingerprint, dict(_parse_entry(source, key, entry) for key, entry in entries.items()))

    def content(self) -> dict[str, object]:
        """Return the manifest as JSON values."""
        return {
            "format": FORMAT,
            "model": self.model_name,
            "fingerprint": self.model_fingerprint,
            "order": ORDER,
            "experts": {
                f"{key.layer}/{key.expert}": {"bytes": digest.n_bytes, "sha256": digest.sha256}
                for key, digest in sorted(self.experts.items())
            },
        }

    def save(self, path: Path | str) -> None:
        """Write the manifest as JSON, atomically. Raises SliceError if it cannot be written."""
        path = Path(path)
        temporary = path.with_name(f".kvasir-{secrets.token_hex(6)}.partial")
        try:
            temporary.write_text(json.dumps(self.content(), indent=1) + "\n", encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            raise SliceError(f"{path}: the manifest cannot be written ({error})") from error
        finally:
            temporary.unlink(missing_ok=True)

    def verify(self, slice_file: SliceFile, progress: Progress | None = None) -> None:
        """Hash every expert of a slice and compare.

        Raises SliceError that names the first expert that differs or is not in this manifest, or if the slice is of
        another model.
        """
        if slice_file.model_fingerprint != self.model_fingerprint:
            raise SliceError(
                f"{slice_file.path} is of model {slice_file.model_fingerprint}, "
                f"the manifest of {self.model_fingerprint}"
            )
        places = _slice_places(slice_file)
        for number, (key, experts, local_id) in enumerate(places, start=1):
            self._verify_expert(key, digest_expert(experts, local_id))
            if progress is not None:
                progress(number, len(places))

    def _verify_expert(self, key: ExpertKey, found: ExpertDigest) -> None:
        wanted = self.experts.get(key)
        if wanted is None:
            raise SliceError(f"expert {key.expert} of layer {key.layer} is not in the manifest")
        if found != wanted:
            raise SliceError(
                f"expert {key.expert} of layer {key.layer} is broken: its {found.n_bytes} bytes have SHA-256 "
                f"{found.sha256}, the manifest says {wanted.n_bytes} bytes and {wanted.sha256}"
            )


def digest_expert(experts: LayerExperts, local_id: int) -> ExpertDigest:
    """Hash one expert: gate, up and down weights as stored, then its biases as little-endian f32."""
    digest = hashlib.sha256()
    n_bytes = 0
    for stack in (experts.gate, experts.up, experts.down):
        digest.update(stack.data[local_id])
        n_bytes += stack.data.shape[1]
    for bias in (experts.gate_bias, experts.up_bias, experts.down_bias):
        if bias is not None:
            stored = bias[local_id].astype("<f4").tobytes()
            digest.update(stored)
            n_bytes += len(stored)
    return ExpertDigest(n_bytes, digest.hexdigest())


def digest_places(places: Iterable[BytePlace], descriptor_of: Callable[[int], int]) -> ExpertDigest:
    """Hash an expert by reading its places in their order, in bounded memory and without a mapping.

    The digest equals `digest_expert`'s. `descriptor_of(part)` is an open file that no other thread reads meanwhile.
    Raises GGUFError if a file ends early.
    """
    digest = hashlib.sha256()
    n_bytes = 0
    for place in places:
        descriptor = descriptor_of(place.part)
        done = 0
        while done < place.n_bytes:
            os.lseek(descriptor, place.offset + done, os.SEEK_SET)  # Windows has no pread
            piece = os.read(descriptor, min(READ_BYTES, place.n_bytes - done))
            if not piece:
                raise GGUFError(f"a model file ended at byte {place.offset + done}, {place.n_bytes - done} bytes early")
            digest.update(piece)
            done += len(piece)
        n_bytes += done
    return ExpertDigest(n_bytes, digest.hexdigest())


_Place = tuple[ExpertKey, LayerExperts, int]


def _slice_places(slice_file: SliceFile) -> list[_Place]:
    return [
        (ExpertKey(layer, expert_id), experts, local_id)
        for layer, experts in sorted(slice_file.layers.items())
        for local_id, expert_id in enumerate(slice_file.expert_ids(layer))
    ]


def _digests(places: list[_Place], progress: Progress | None) -> dict[ExpertKey, ExpertDigest]:
    found: dict[ExpertKey, ExpertDigest] = {}
    for number, (key, experts, local_id) in enumerate(places, start=1):
        found[key] = digest_expert(experts, local_id)
        if progress is not None:
            progress(number, len(places))
    return found


def _parse_entry(source: str, key: str, entry: object) -> tuple[ExpertKey, ExpertDigest]:
    match = _KEY.fullmatch(key)
    if match is None:
        raise SliceError(f"{source}: {key[:80]!r} is not an expert; experts are written as layer/expert, such as 0/3")
    n_bytes, sha256 = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if type(n_bytes) is not int or n_bytes < 1 or not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise SliceError(f"{source}: expert {key} needs bytes (above 0) and sha256 (64 hex digits)")
    return ExpertKey(int(match["layer"]), int(match["expert"])), ExpertDigest(n_bytes, sha256)
