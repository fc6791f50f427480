"""What the model asks of the routed experts' side: a dispatcher over workers, or an oracle in a test."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from torch import Tensor

from backbone.engine.ops.interface import Routing


class ExpertCaller(Protocol):
    """Computes routed experts."""

    def submit(self, layer: int, rows: Tensor, routing: Routing) -> Awaitable[Tensor]:
        """Start computing rows [T, d_model] of a layer with their experts; the work has begun when this returns.

        The awaitable yields the unweighted partials [T, n_used, d_model] in the rows' dtype, or, from a caller whose
        workers answer with sums, the combined rows [T, d_model].
        """
        ...
