"""The unit of a row's integer sums: one exponent a row, from the model and the row's weights alone.

The dispatcher asks for the exponents of every layer call that is answered with sums. `serving.sum_calibration` measures
a model's scale once, on a fixed text, and keeps it; an exponent depends on neither time, worker nor batch.
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
from kvasir.errors import ConfigError
from kvasir.experts import FloatRows
from kvasir.kernels.api import RowFormat
from kvasir.kernels.sums import BLOCK, MAX_EXPONENT, MAX_PAIRS_OF_ROW, MIN_EXPONENT, Exponents

# The rounding error of a pair is uniform in one unit. With 8 pairs and 2^6 units for the row's deviation it is below
# 1.3 % of the row, as is the error of KX1's own rounding of activations; most sums still fit in 8 or 12 bits.
DEFAULT_BITS = 6
FORMAT = "kvasir sum scale 1"


@dataclass(frozen=True, slots=True)
class SumScale:
    """Root mean squares of unweighted expert outputs, by layer; a row's deviation has at least 2^bits units."""

    fingerprint: str  # of the model
    output_rms: Mapping[int, float]
    bits: int = DEFAULT_BITS

    def exponents(self, layer: int, weights: FloatRows) -> Exponents:
        """Return the exponents [T] of rows with the combine's weights [T, n_used].

        2^exponent is the largest power of two that fits at least 2^bits times into the row's expected deviation,
        output_rms · sqrt(Σ weight²).
        """
        squares = np.zeros(len(weights), np.float64)
        for column in weights.T.astype(np.float64):  # a fixed order, so that no batch changes a bit
            squares += column * column
        deviations = self.output_rms[layer] * np.sqrt(squares)
        _, above = np.frexp(deviations)  # deviation = m · 2^above with 1/2 <= m < 1, and 0 · 2^0
        return np.asarray(np.clip(above - 1 - self.bits, MIN_EXPONENT, MAX_EXPONENT), np.int32)

    @property
    def digest(self) -> str:
        """The SHA-256 of everything that decides an exponent: scales with other digests give other bits."""
        return hashlib.sha256(f"{self.as_json()}{self.bits}".encode()).hexdigest()

    def as_json(self) -> str:
        """Return the scale as text for a file."""
        rms = {str(layer): value for layer, value in sorted(self.output_rms.items())}
        return json.dumps({"format": FORMAT, "fingerprint": self.fingerprint, "output_rms": rms}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, bits: int = DEFAULT_BITS) -> Self:
        """Parse the text of `as_json`. Raises ConfigError for any other text."""
        try:
            found: dict[str, Any] = json.loads(text)
            if found["format"] != FORMAT:
                raise ConfigError(f"the scale of sums has the format {found['format']!r}; {FORMAT!r} is needed")
            rms = {int(layer): float(value) for layer, value in found["output_rms"].items()}
            if not all(math.isfinite(value) and value > 0 for value in rms.values()):
                raise ConfigError("the scale of sums has a value that is not a positive number")
            return cls(str(found["fingerprint"]), rms, bits)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"invalid scale of sums: {error}") from error


def check_can_sum(store: ExpertStore, scale: SumScale) -> None:
    """Raise ConfigError, with the reason, if answers to this model's calls cannot be sums by this scale."""
    card = store.card
    if store.kernel.row_format is not RowFormat.KX1:
        raise ConfigError(f"sums need the kernel kx1; this model is computed with {store.kernel.name}")
    if card.n_used > MAX_PAIRS_OF_ROW:
        raise ConfigError(f"sums hold {MAX_PAIRS_OF_ROW} experts of a row at most; this model uses {card.n_used}")
    if card.d_model % BLOCK:
        raise ConfigError(f"sums need rows of a multiple of {BLOCK} values; this model's have {card.d_model}")
    if scale.fingerprint != card.fingerprint:
        raise ConfigError(f"the scale of sums is of model {scale.fingerprint}, this is {card.fingerprint}")
    missing = set(card.moe_layers) - scale.output_rms.keys()
    if missing:
        raise ConfigError(f"the scale of sums lacks layers {sorted(missing)}")
