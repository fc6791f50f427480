"""Measure what a picture of a benchmark shows, without how it is drawn: lines over numbers, or bars by group.

`curves` makes charts from figures, `svg_chart` draws them. Values are finite; a chart that shows nothing is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from kvasir.errors import ConfigError


class Scale(Enum):
    """The division of an axis."""

    LINEAR = "linear"  # from 0
    LOG = "log"  # values above 0 only


@dataclass(frozen=True, slots=True)
class Series:
    """Values by place: x of a line, or group of bars. A guide is drawn thin, without marks: what would be ideal."""

    name: str
    values: Mapping[float, float]
    is_guide: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """A horizontal line with a name, such as a goal."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture. With `groups` it has bars, and series are by number of group; without, lines over numbers."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_scale: Scale = Scale.LINEAR
    y_scale: Scale = Scale.LINEAR
    groups: Sequence[str] = ()
    limits: Sequence[Limit] = ()
    note: str = ""  # a line below the title

    def __post_init__(self) -> None:
        values = [value for one in self.series for pair in one.values.items() for value in pair]
        if not values or not all(map(math.isfinite, values)):
            raise ConfigError(f"{self.title!r} has no values, or some that are not finite")
        if self.y_scale is Scale.LOG and any(y <= 0 for one in self.series for y in one.values.values()):
            raise ConfigError(f"{self.title!r} has values of 0 or less, which a logarithmic axis does not reach")

    @property
    def places(self) -> list[float]:
        """Every x or group number that has a value, ascending."""
        return sorted({x for one in self.series for x in one.values})


def nice_ticks(low: float, high: float, n_wanted: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`, steps of 1, 2, 2.5 or 5 times a power of ten."""
    span = max(high - low, 1e-12)
    power = 10.0 ** math.floor(math.log10(span / n_wanted))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power * n_wanted >= span * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    return [number * step for number in range(first, math.ceil(high / step - 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, from at most `low` to at least `high`, both above 0."""
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    ticks = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
    first = max(tick for tick in ticks if tick <= low * (1 + 1e-9))
    last = min(tick for tick in ticks if tick >= high * (1 - 1e-9))
    return [tick for tick in ticks if first <= tick <= last]
