"""How many tokens were drafted, and how many of these were the ones that the model chose. Plain numbers, added up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Tokens. What was drafted and not accepted was computed for nothing."""

    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: DraftCounts) -> DraftCounts:
        return DraftCounts(self.drafted + other.drafted, self.accepted + other.accepted)
