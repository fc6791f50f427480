"""The unit of a row's integer sums: one exponent a row, from the model and the row's weights alone.

The dispatcher asks for every MoE layer that is answered in sums. The scale of a layer is measured once on a fixed text
(`sum_calibration`) and kept; nothing here depends on time, place or batch.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.transport import SumTransport, Transport
from kvasir.errors import ConfigError
from kvasir.experts import FloatRows
from kvasir.kernels.api import RowFormat
from kvasir.kernels.sums import BLOCK, MAX_EXPONENT, MAX_PAIRS_OF_ROW, MIN_EXPONENT, Exponents

# The rounding of a pair is uniform in one unit: with 8 pairs and 2^6 units for the row's deviation its error is below
# 1.3 % of the row, which is what KX1's own rounding of activations costs; most sums still fit in 8 or 12 bits.
DEFAULT_BITS = 6
FORMAT = "kvasir sum scale 1"


@dataclass(frozen=True, slots=True)
class SumScale:
    """Root mean squares of expert outputs, unweighted, by layer; a row's deviation has at least 2^bits units."""

    fingerprint: str  # of the model
    output_rms: Mapping[int, float]
    bits: int = DEFAULT_BITS

    def exponents(self, layer: int, weights: FloatRows) -> Exponents:
        """Exponents [T] of rows with the combine's weights [T, n_used].

        2^exponent is the largest power of two of which the row's expected deviation, output_rms · sqrt(Σ weight²), has
        2^bits or more.
        """
        squares = np.zeros(len(weights), np.float64)
        for column in weights.T.astype(np.float64):  # in this order, whatever the batch
            squares += column * column
        deviations = self.output_rms[layer] * np.sqrt(squares)
        _, above = np.frexp(deviations)  # deviation = m · 2^above with 1/2 <= m < 1, and 0 · 2^0
        return np.asarray(np.clip(above - 1 - self.bits, MIN_EXPONENT, MAX_EXPONENT), np.int32)

    @property
    def digest(self) -> str:
        """SHA-256 of all that decides an exponent: scales that differ in it give other bits."""
        return hashlib.sha256(f"{self.as_json()}{self.bits}".encode()).hexdigest()

    def as_json(self) -> str:
        """For a file."""
        rms = {str(layer): value for layer, value in sorted(self.output_rms.items())}
        return json.dumps({"format": FORMAT, "fingerprint": self.fingerprint, "output_rms": rms}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, bits: int = DEFAULT_BITS) -> Self:
        """The reverse. Raises ConfigError for a text that is no scale."""
        try:
            found: dict[str, Any] = json.loads(text)
            if found["format"] != FORMAT:
                raise ConfigError(f"the scale of sums has the format {found['format']!r}; {FORMAT!r} is needed")
            rms = {int(layer): float(value) for layer, value in found["output_rms"].items()}
            if not all(math.isfinite(value) and value > 0 for value in rms.values()):
                raise ConfigError("the scale of sums has a value that is not a positive number")
            return cls(str(found["fingerprint"]), rms, bits)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"this is no scale of sums: {error}") from error


def check_can_sum(store: ExpertStore, transport: Transport, scale: SumScale | None) -> None:
    """Raise ConfigError, with the reason, where answers cannot be sums."""
    card = store.card
    if store.kernel.row_format is not RowFormat.KX1:
        raise ConfigError(f"sums need the kernel kx1; this model is computed with {store.kernel.name}")
    if card.n_used > MAX_PAIRS_OF_ROW:
        raise ConfigError(f"sums hold {MAX_PAIRS_OF_ROW} experts of a row at most; this model uses {card.n_used}")
    if card.d_model % BLOCK:
        raise ConfigError(f"sums need rows of a multiple of {BLOCK} values; this model's have {card.d_model}")
    if not isinstance(transport, SumTransport):
        raise ConfigError(f"{type(transport).__name__} cannot ask workers for sums")
    if scale is None:
        raise ConfigError("sums need a scale: see backbone.engine.serving.sum_calibration")
    if scale.fingerprint != card.fingerprint:
        raise ConfigError(f"the scale of sums is of model {scale.fingerprint}, this is {card.fingerprint}")
    missing = set(card.moe_layers) - scale.output_rms.keys()
    if missing:
        raise ConfigError(f"the scale of sums lacks layers {sorted(missing)}")
