"""Whether a model's origin serves the very bytes that the site vouches for: one expert is fetched and hashed first.

`slices.store` asks before it fetches gigabytes there. The place of the first expert follows from the manifest alone.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import aclosing
from itertools import takewhile

from kvasir.errors import DownloadError
from kvasir.experts import ExpertRange
from kvasir.slicing.manifest import ExpertKey
from kvasir.worker.slices.http import RangeSource
from kvasir.worker.slices.manifest import OriginPiece, SliceManifest

log = logging.getLogger(__name__)


async def origin_is_right(source: RangeSource, layout: SliceManifest, ranges: tuple[ExpertRange, ...]) -> bool:
    """Fetch the first expert from the origin and compare. False, with a warning, for whatever goes wrong."""
    first = ranges[0]
    wanted = layout.manifest.experts[ExpertKey(first.layer, first.start)]
    digest = hashlib.sha256()
    try:
        for place, n_bytes in _first_expert(layout, ranges):
            chunks = source.read_range(place.url, place.offset, place.offset + n_bytes, place.file_bytes)
            async with aclosing(chunks):
                async for chunk in chunks:
                    digest.update(chunk)
    except DownloadError as error:
        log.warning("the origin is not used: %s", error)
        return False
    if digest.hexdigest() != wanted.sha256:
        log.warning(
            "the origin %s is not used: expert %d of layer %d has SHA-256 %s there, the manifest says %s",
            *(layout.origin[0].url, first.start, first.layer, digest.hexdigest(), wanted.sha256),
        )
        return False
    return True


def _first_expert(layout: SliceManifest, ranges: tuple[ExpertRange, ...]) -> list[tuple[OriginPiece, int]]:
    """The first expert's places. A layer's pieces come tensor by tensor, in each tensor range by range."""
    in_layer = list(takewhile(lambda item: item.layer == ranges[0].layer, ranges))
    layer_bytes = sum(digest.n_bytes for key, digest in layout.manifest.experts.items() if key.layer == ranges[0].layer)
    places = []
    for number, piece in enumerate(layout.pieces):
        if layer_bytes <= 0:
            break
        layer_bytes -= piece.n_bytes
        if number % len(in_layer) == 0:
            places.append((layout.origin[number], piece.n_bytes // in_layer[0].n_experts))
    return places
