"""The interface through which the model has routed experts computed: by a dispatcher, or by an oracle in a test.

The engine builds a `StepRows` for each step, so that the dispatcher knows the requests of its rows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from backbone.engine.ops.interface import Routing


class ExpertCaller(Protocol):
    """Compute routed experts, here or on workers."""

    def submit(self, layer: int, rows: Tensor, expert_ids: Tensor) -> Awaitable[Tensor]:
        """Start computing rows [T, d_model] with experts [T, n_used] (int64) of a layer.

        The work has been sent when this returns. The awaitable yields the partials [T, n_used, d_model], unweighted, in
        the rows' dtype.
        """
        ...


@runtime_checkable
class SummingCaller(Protocol):
    """An expert caller that can combine: its workers answer with sums of weighted outputs."""

    @property
    def has_sums(self) -> bool:
        """Return whether to call `submit_sums` instead of `submit`."""
        ...

    def submit_sums(self, layer: int, rows: Tensor, routing: Routing) -> Awaitable[Tensor]:
        """Submit with the combine's weights; the awaitable yields the combined rows [T, d_model]."""
        ...


class RequestRows(NamedTuple):
    """The next rows of a step that belong to one request."""

    request_id: str
    n_rows: int
    is_strict: bool


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """The requests of a step's T rows. They never change what is computed."""

    request_ids: tuple[str, ...] = ()  # by chunk
    chunk_of_row: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))  # [T]
    is_strict: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))  # [T]

    @classmethod
    def of(cls, chunks: Iterable[RequestRows]) -> StepRows:
        """Return the rows of a step, given its chunks in order."""
        parts = tuple(chunks)
        lengths = [part.n_rows for part in parts]
        return cls(
            tuple(part.request_id for part in parts),
            np.repeat(np.arange(len(parts), dtype=np.int32), lengths),
            np.repeat(np.asarray([part.is_strict for part in parts], np.bool_), lengths),
        )

    def requests_of(self, rows: npt.NDArray[np.int32]) -> list[str]:
        """Return the ids of the requests that have one of these rows; none if no step was begun."""
        if not len(self.chunk_of_row):
            return []
        return [self.request_ids[chunk] for chunk in np.unique(self.chunk_of_row[rows]).tolist()]

    def strict_pairs(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_] | None:
        """Mark the pairs, given by their rows, that belong to strict requests; None if none does."""
        if not self.is_strict.any():
            return None
        return np.asarray(self.is_strict[rows])


@runtime_checkable
class StepAware(Protocol):
    """An expert caller that needs the requests of a step's rows. The engine calls it before each forward."""

    def begin_step(self, rows: StepRows) -> None:
        """Take the requests of the next forward's rows."""
        ...
