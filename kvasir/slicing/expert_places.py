"""Where one expert's bytes lie in a file, and their digest computed by reading: no mapping, bounded memory.

The slice server hashes a model's experts with it, a worker's slice store those of a slice it has fetched. The digest is
the manifest's: the tensors of a layer, one after another, hold an expert's bytes in just the order that it is taken in.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvasir.errors import GGUFError
from kvasir.slicing.expert_tensors import ExpertTensors
from kvasir.slicing.manifest import ExpertDigest

READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BytePlace:
    """`n_bytes` bytes at `offset` of part number `part` of a GGUF file or split set."""

    part: int
    offset: int
    n_bytes: int

    @property
    def stop(self) -> int:
        """First offset after these bytes."""
        return self.offset + self.n_bytes


def expert_places(tensors: ExpertTensors, local_id: int) -> tuple[BytePlace, ...]:
    """One expert's bytes in the order of its digest: weights, then biases."""
    places = []
    for info in tensors.all_tensors:
        n_bytes = info.n_bytes // tensors.n_expert
        places.append(BytePlace(info.part, info.offset + local_id * n_bytes, n_bytes))
    return tuple(places)


def digest_places(places: Iterable[BytePlace], descriptor_of: Callable[[int], int]) -> ExpertDigest:
    """Size and SHA-256 of an expert that lies at `places`; `descriptor_of(part)` is an open file
    that nobody else reads meanwhile.

    Raises GGUFError when a file ends early.
    """
    digest = hashlib.sha256()
    n_bytes = 0
    for place in places:
        descriptor = descriptor_of(place.part)
        done = 0
        while done < place.n_bytes:
            os.lseek(descriptor, place.offset + done, os.SEEK_SET)  # pread would be one call, but Windows has none
            piece = os.read(descriptor, min(READ_BYTES, place.n_bytes - done))
            if not piece:
                raise GGUFError(f"a model file ended at byte {place.offset + done}, {place.n_bytes - done} bytes early")
            digest.update(piece)
            done += len(piece)
        n_bytes += done
    return ExpertDigest(n_bytes, digest.hexdigest())
