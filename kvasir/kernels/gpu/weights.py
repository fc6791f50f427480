"""The experts in GPU memory: uploaded when they are first computed, least recently used ones evicted if memory is full.

Called by `gpu.kernel`. Arenas hold GGUF bytes unchanged; the mapped file keeps the data, so an eviction loses nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from kvasir.errors import KernelError
from kvasir.experts import LayerExperts, WeightMatrix
from kvasir.kernels.gpu.device import GpuDevice, GpuError
from kvasir.kernels.gpu.space import ArenaSpace, Piece
from kvasir.kernels.gpu.tables import PlacedExpert, PlacedMatrix
from kvasir.kernels.oracle.weights import weight_exponent

LEAST_ARENA_BYTES = 16 * 1024 * 1024
MATRIX_ALIGNMENT = 16

Key = tuple[int, int]  # which loaded layer, local id


class GpuWeights:
    """A bounded cache of experts in GPU memory. Used by one thread at a time."""

    def __init__(self, device: GpuDevice, max_bytes: int | None = None) -> None:
        self._device = device
        self._max_bytes = max_bytes
        self._space = ArenaSpace()
        self.arenas: list[Any] = []
        self._held: OrderedDict[Key, tuple[Piece, PlacedExpert]] = OrderedDict()  # least recently used first
        self.n_uploads = 0

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the arenas that experts take."""
        return sum(self._space.arena_bytes) - self._space.free_bytes

    def place(self, key: Key, experts: LayerExperts, pinned: AbstractSet[Key]) -> PlacedExpert | None:
        """Return an expert's place, after an upload if needed; None if only evicting `pinned` experts would make room.

        Raises KernelError for a scale that is not finite, GpuError if the device has no memory at all.
        """
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key][1]
        matrices = [stack.expert(key[1]) for stack in (experts.gate, experts.up, experts.down)]
        exponents = [self._exponent(experts, key[1], i, matrix) for i, matrix in enumerate(matrices)]
        piece = self._room(expert_bytes(experts), pinned)
        if piece is None:
            return None
        placed = self._upload(piece, matrices, exponents)
        self._held[key] = (piece, placed)
        return placed

    def forget(self, layer: int) -> None:
        """Free all experts of a loaded layer."""
        for key in [key for key in self._held if key[0] == layer]:
            self._space.give_back(self._held.pop(key)[0])

    def _exponent(self, experts: LayerExperts, local_id: int, number: int, matrix: WeightMatrix) -> int:
        try:
            return weight_exponent(matrix)
        except KernelError as error:
            name = ("gate", "up", "down")[number]
            raise KernelError(f"layer {experts.layer}, local expert {local_id}, {name}: {error}") from error

    def _upload(self, piece: Piece, matrices: list[WeightMatrix], exponents: list[int]) -> PlacedExpert:
        offset = piece.offset
        placed = []
        for matrix, exponent in zip(matrices, exponents, strict=True):
            self._write(piece.arena, offset, matrix)
            placed.append(PlacedMatrix(matrix.quant_type, offset, exponent))
            offset += _aligned(len(matrix.data))
        self.n_uploads += 1
        return PlacedExpert(piece.arena, *placed)

    def _write(self, arena: int, offset: int, matrix: WeightMatrix) -> None:
        """Copy a matrix; if its length is not a multiple of 4 bytes, the rest is padded to a word."""
        whole = len(matrix.data) // 4 * 4
        self._device.write(self.arenas[arena], matrix.data[:whole], offset)
        if whole < len(matrix.data):
            rest = matrix.data[whole:].tobytes().ljust(4, b"\0")
            self._device.write(self.arenas[arena], np.frombuffer(rest, np.uint8), offset + whole)

    def _room(self, n_bytes: int, pinned: AbstractSet[Key]) -> Piece | None:
        piece = self._space.take(n_bytes)
        if piece is None and self._add_arena(n_bytes):
            piece = self._space.take(n_bytes)
        unused = [key for key in self._held if key not in pinned]
        while piece is None and unused:
            self._space.give_back(self._held.pop(unused.pop(0))[0])
            piece = self._space.take(n_bytes)
        return piece

    def _add_arena(self, n_bytes: int) -> bool:
        """Add an arena as large as all before together; return False if there is no memory for it."""
        total = sum(self._space.arena_bytes)
        size = min(self._device.arena_bytes, max(LEAST_ARENA_BYTES, n_bytes, total))
        if self._max_bytes is not None:
            size = min(size, self._max_bytes - total) // 256 * 256
        if size < n_bytes:
            return False
        try:
            self.arenas.append(self._device.storage(size))
        except GpuError:
            if not self.arenas:
                raise
            return False
        self._space.add_arena(size)
        return True


def expert_bytes(experts: LayerExperts) -> int:
    """Return the bytes that one expert of a layer takes in an arena."""
    return sum(_aligned(stack.data.shape[1]) for stack in (experts.gate, experts.up, experts.down))


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // MATRIX_ALIGNMENT) * MATRIX_ALIGNMENT
