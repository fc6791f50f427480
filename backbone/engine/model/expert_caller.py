"""What the model asks of whoever computes routed experts: a dispatcher over workers, or an oracle in a test."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

from torch import Tensor

from backbone.engine.model.step_rows import StepRows
from backbone.engine.ops.interface import Routing


class ExpertCaller(Protocol):
    """Computes routed experts, wherever they are."""

    def submit(self, layer: int, rows: Tensor, expert_ids: Tensor) -> Awaitable[Tensor]:
        """Start computing rows [T, d_model] with experts [T, n_used] (int64) of a layer.

        The work is on its way when this returns. The awaitable yields the partials [T, n_used, d_model], unweighted,
        in the rows' dtype.
        """
        ...


@runtime_checkable
class SummingCaller(Protocol):
    """An expert caller that may combine: its workers answer with sums of weighted outputs."""

    @property
    def has_sums(self) -> bool:
        """Whether `submit_sums` is to be called instead of `submit`."""
        ...

    def submit_sums(self, layer: int, rows: Tensor, routing: Routing) -> Awaitable[Tensor]:
        """As `submit`, with the combine's weights; the awaitable yields the combined rows [T, d_model]."""
        ...


@runtime_checkable
class StepAware(Protocol):
    """An expert caller that wants to know whose rows a step has. The engine tells it before each forward."""

    def begin_step(self, rows: StepRows) -> None:
        """Say whose rows the next forward has."""
        ...
