"""Verification of a downloaded slice, and repair: only broken bytes are fetched again, from the site.

`slices.store` calls it before a slice gets its final name. The header and every expert are hashed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path

from kvasir.errors import DownloadError, GGUFError, KvasirError
from kvasir.experts import ExpertRange
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.expert_places import digest_places, expert_places
from kvasir.slicing.expert_tensors import find_expert_tensors
from kvasir.slicing.slice_file import SliceFile
from kvasir.worker.slices.download import Patience, Sources
from kvasir.worker.slices.http import TransferError
from kvasir.worker.slices.manifest import Piece, SliceManifest
from kvasir.worker.slices.paths import PartialFile

ROUNDS = 3  # of verification and repair, before a slice is given up

log = logging.getLogger(__name__)


class BrokenSliceError(DownloadError):
    """Bytes are still wrong after repeated downloads."""


class SliceRepair:
    """The verification of one slice whose bytes are all there."""

    def __init__(
        self, path: Path, layout: SliceManifest, ranges: tuple[ExpertRange, ...], sources: Sources, patience: Patience
    ) -> None:
        self._path = path
        self._layout = layout
        self._ranges = ranges
        self._sources = sources
        self._patience = patience

    async def run(self) -> int:
        """Verify, repair, and verify again. Returns how many bytes were fetched again.

        Raises BrokenSliceError if the site's bytes do not match its manifest, DownloadError if they cannot be fetched.
        """
        broken = await asyncio.to_thread(self._broken)
        n_fetched = 0
        for _ in range(ROUNDS):
            if not broken:
                return n_fetched
            n_bytes = sum(piece.n_bytes for piece in broken)
            log.warning("%s: %d bytes are broken; fetching them again", self._path.name, n_bytes)
            await self._refetch(broken)
            n_fetched += n_bytes
            broken = await asyncio.to_thread(self._broken)
        if broken:
            raise BrokenSliceError(
                f"{self._path.name}: {sum(piece.n_bytes for piece in broken)} bytes from {broken[0].position} on still "
                f"do not match the manifest after {ROUNDS} downloads; the site's file or its manifest is wrong"
            )
        return n_fetched

    def _broken(self) -> list[Piece]:
        """Return the places that must be fetched again, joined where they touch."""
        layout = self._layout
        with self._path.open("rb", buffering=0) as file:
            header = file.read(layout.header_bytes)
            if hashlib.sha256(header).hexdigest() != layout.header_sha256:
                return [Piece(0, layout.header_bytes)]  # without it the places of the experts are unknown
            return _joined(self._broken_experts(file.fileno()))

    def _broken_experts(self, descriptor: int) -> Iterable[Piece]:
        try:
            with SliceFile.open(self._path) as held, GGUFIndex.open(self._path) as index:
                if held.ranges != self._ranges or held.model_fingerprint != self._layout.manifest.model_fingerprint:
                    raise BrokenSliceError(f"{self._path.name}: it is a slice of other experts than requested")
                tensors = find_expert_tensors(index, held.facts.n_layer)
                places = {
                    key: expert_places(tensors[key.layer], held.local_id(key.layer, key.expert))
                    for key in self._layout.manifest.experts
                }
            return [
                Piece(place.offset, place.n_bytes)
                for key, wanted in self._layout.manifest.experts.items()
                if digest_places(places[key], lambda _: descriptor) != wanted
                for place in places[key]
            ]
        except GGUFError as error:
            raise BrokenSliceError(f"{self._path.name}: its header is right, its length is wrong ({error})") from error
        except DownloadError:
            raise
        except KvasirError as error:
            raise BrokenSliceError(f"{self._path.name}: the site's file is not a valid slice ({error})") from error

    async def _refetch(self, broken: list[Piece]) -> None:
        with PartialFile(self._path) as file:
            for piece in broken:
                position, n_failed = piece.position, 0
                while position < piece.stop:
                    before = position
                    try:
                        position = await self._fetch(file, position, piece.stop)
                    except _CutError as error:
                        position = error.position
                        n_failed = 1 if position > before else n_failed + 1
                        if n_failed >= self._patience.attempts:
                            raise DownloadError(f"{n_failed} attempts in a row brought no byte: {error}") from error
                        await self._patience.wait(n_failed, error.retry_after_s)

    async def _fetch(self, file: PartialFile, start: int, stop: int) -> int:
        """Overwrite bytes with fetched ones; return the position after the last. Raises _CutError."""
        layout, position = self._layout, start
        chunks = self._sources.site.read_range(self._sources.slice_url, start, stop, layout.n_bytes, layout.etag)
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    file.write_at(position, chunk)
                    position += len(chunk)
        except TransferError as error:
            raise _CutError(error, position) from error
        return position


class _CutError(TransferError):
    def __init__(self, error: TransferError, position: int) -> None:
        super().__init__(str(error), error.retry_after_s)
        self.position = position


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: piece.position):
        if joined and joined[-1].stop == piece.position:
            joined[-1] = Piece(joined[-1].position, joined[-1].n_bytes + piece.n_bytes)
        else:
            joined.append(piece)
    return joined
