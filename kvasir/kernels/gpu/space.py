"""The allocator of GPU arenas: which bytes of which arena are free.

Called by `gpu.weights`. Pure bookkeeping without a device.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

ALIGNMENT = 256


class Piece(NamedTuple):
    """Bytes of one arena."""

    arena: int
    offset: int
    n_bytes: int


class ArenaSpace:
    """A first-fit allocator over all arenas; neighbouring free pieces are merged."""

    def __init__(self) -> None:
        self._free: list[Piece] = []
        self.arena_bytes: list[int] = []

    def add_arena(self, n_bytes: int) -> None:
        """Add a free arena."""
        self._free.append(Piece(len(self.arena_bytes), 0, n_bytes))
        self.arena_bytes.append(n_bytes)

    def take(self, n_bytes: int) -> Piece | None:
        """Allocate at least `n_bytes` at a multiple of ALIGNMENT; return None if no free piece is large enough."""
        wanted = aligned(n_bytes)
        for number, piece in enumerate(self._free):
            if piece.n_bytes >= wanted:
                rest = Piece(piece.arena, piece.offset + wanted, piece.n_bytes - wanted)
                self._free[number : number + 1] = [rest] if rest.n_bytes else []
                return Piece(piece.arena, piece.offset, wanted)
        return None

    def give_back(self, piece: Piece) -> None:
        """Free a piece that `take` returned."""
        insort(self._free, piece)
        merged: list[Piece] = []
        for item in self._free:
            last = merged[-1] if merged else None
            if last and last.arena == item.arena and last.offset + last.n_bytes == item.offset:
                merged[-1] = Piece(last.arena, last.offset, last.n_bytes + item.n_bytes)
            else:
                merged.append(item)
        self._free = merged

    @property
    def free_bytes(self) -> int:
        """Return the bytes of all free pieces."""
        return sum(piece.n_bytes for piece in self._free)


def aligned(n_bytes: int) -> int:
    """Round `n_bytes` up to ALIGNMENT."""
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT
