"""The manifest of one slice: digests, size, layout, and optionally another source for its bytes (the origin).

`slices.store` reads it from /api/manifests and keeps it beside the slice. All numbers are checked against each other
here, so that download and repair can rely on them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from kvasir.errors import DownloadError, SliceError
from kvasir.experts import ExpertRange
from kvasir.slicing.manifest import MANIFEST_MAX_BYTES, ExpertKey, Manifest

SLICE_MAX_BYTES = 1 << 50

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_ETAG = re.compile(r'"[\x21\x23-\x7e]{1,100}"', re.ASCII)


@dataclass(frozen=True, slots=True)
class Piece:
    """`n_bytes` bytes of weights at `position` of the slice."""

    position: int
    n_bytes: int

    @property
    def stop(self) -> int:
        """Return the first position after these bytes."""
        return self.position + self.n_bytes


@dataclass(frozen=True, slots=True)
class OriginPiece:
    """The place of the same bytes in a file elsewhere."""

    url: str
    offset: int
    file_bytes: int  # of the whole file


@dataclass(frozen=True, slots=True)
class SliceManifest:
    """A manifest of exactly one slice's experts. `origin` has a place for each piece, or is empty."""

    manifest: Manifest
    n_bytes: int
    etag: str
    header_bytes: int
    header_sha256: str
    pieces: tuple[Piece, ...]
    origin: tuple[OriginPiece, ...]

    @classmethod
    def parse(cls, body: bytes, fingerprint: str, ranges: tuple[ExpertRange, ...]) -> SliceManifest:
        """Parse the site's answer. Raises DownloadError unless it is valid and of these experts of this model."""
        try:
            if len(body) > MANIFEST_MAX_BYTES:
                raise SliceError(f"it has {len(body)} bytes; at most {MANIFEST_MAX_BYTES} are allowed")
            content = json.loads(body)
            manifest = Manifest.from_content(content, "the site's answer")
            found = _read(manifest, content)
            _check(found, fingerprint, ranges)
        except (SliceError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DownloadError(f"the slice's manifest cannot be used: {error}") from error
        return found

    def expert_bytes(self, layer: int) -> int:
        """Return the bytes of one expert of a layer: the largest if they differ."""
        return max(digest.n_bytes for key, digest in self.manifest.experts.items() if key.layer == layer)


def _read(manifest: Manifest, content: Mapping[str, object]) -> SliceManifest:
    layout = cast(Mapping[str, object], content["slice"])
    pieces = tuple(Piece(*_counts(row, 2)) for row in cast(list[object], layout["pieces"]))
    etag, header_sha256 = str(layout["etag"]), str(layout["header_sha256"])
    if not _ETAG.fullmatch(etag) or not _SHA256.fullmatch(header_sha256):
        raise SliceError("its slice needs an etag in quotes and header_sha256 of 64 hex digits")
    n_bytes, header_bytes = _counts([layout["bytes"], layout["header_bytes"]], 2)
    origin = _read_origin(cast(Mapping[str, object], content["origin"]), pieces) if "origin" in content else ()
    return SliceManifest(manifest, n_bytes, etag, header_bytes, header_sha256, pieces, origin)


def _read_origin(content: Mapping[str, object], pieces: tuple[Piece, ...]) -> tuple[OriginPiece, ...]:
    rows = [_counts(row, 2) for row in cast(list[object], content["ranges"])]
    parts = _counts(content.get("parts", [0] * len(rows)), len(rows))
    urls = cast(list[object], content.get("urls", [content["url"]]))
    sizes = _counts(content["part_bytes"], len(urls))
    if [n_bytes for _, n_bytes in rows] != [piece.n_bytes for piece in pieces]:
        raise SliceError("its origin's ranges are not the slice's pieces")
    if any(
        part >= len(urls) or offset + n_bytes > sizes[part] for part, (offset, n_bytes) in zip(parts, rows, strict=True)
    ):
        raise SliceError("its origin's ranges are not in the origin's files")
    return tuple(
        OriginPiece(str(urls[part]), offset, sizes[part]) for part, (offset, _) in zip(parts, rows, strict=True)
    )


def _counts(row: object, n: int) -> tuple[int, ...]:
    """Return a row of `n` integers that are valid sizes or offsets."""
    if not isinstance(row, list) or len(row) != n:
        raise SliceError(f"{str(row)[:80]} is not {n} numbers")
    if any(type(item) is not int or not 0 <= item <= SLICE_MAX_BYTES for item in row):
        raise SliceError(f"{str(row)[:80]} has a value that is not a valid size or offset")
    return tuple(row)


def _check(found: SliceManifest, fingerprint: str, ranges: tuple[ExpertRange, ...]) -> None:
    if found.manifest.model_fingerprint != fingerprint:
        raise SliceError(f"it is of model {found.manifest.model_fingerprint}, not of {fingerprint}")
    wanted = {ExpertKey(item.layer, expert) for item in ranges for expert in range(item.start, item.stop)}
    if set(found.manifest.experts) != wanted:
        raise SliceError(f"its {len(found.manifest.experts)} experts are not the {len(wanted)} requested ones")
    starts_with_weights = bool(found.pieces) and 0 < found.header_bytes <= found.pieces[0].position
    in_order = all(left.stop <= right.position for left, right in pairwise(found.pieces))
    if not starts_with_weights or not in_order or found.pieces[-1].stop > found.n_bytes:
        raise SliceError("its pieces overlap, or lie outside the slice")
    weights, hashed = sum(piece.n_bytes for piece in found.pieces), found.manifest.experts.values()
    if weights != sum(digest.n_bytes for digest in hashed):
        raise SliceError(f"its pieces have {weights} bytes, its experts {sum(digest.n_bytes for digest in hashed)}")
