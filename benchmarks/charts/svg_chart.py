"""Draws a `Chart` as an SVG text: no script, no font of its own, readable on a light and on a dark page.

`draw_curves` writes what it returns. The same chart always gives the same text, so that a picture can be held to the
figures that it was made from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from benchmarks.charts.chart import Chart, Scale, Series, log_ticks, nice_ticks

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 72, 696, 98, 352
LEGEND_Y = 74
LETTER = 6.7  # width of one, roughly
N_COLOURS = 6
ROOM_ABOVE = 1.06  # for the number over the highest bar
GROUP_SHARE = 0.78  # of a group's width that its bars take

STYLE = """
  .paper { fill: #ffffff } text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-size: 16px; font-weight: 600 } .small { font-size: 12px; fill: #57606a }
  .axis { stroke: #57606a } .grid { stroke: #d8dee4 } .limit { stroke: #57606a; stroke-dasharray: 6 4 }
  .line { fill: none; stroke-width: 2.5 } .guide { fill: none; stroke-width: 1.5; stroke-dasharray: 2 4 }
  .c0 { --c: #0b62b0 } .c1 { --c: #b4480c } .c2 { --c: #12774f }
  .c3 { --c: #7d3fb5 } .c4 { --c: #8a6100 } .c5 { --c: #b1266d }
  .line, .guide { stroke: var(--c) } .mark, .bar { fill: var(--c) }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } text { fill: #e6edf3 } .small { fill: #9da7b3 }
    .axis { stroke: #9da7b3 } .grid { stroke: #2b333d } .limit { stroke: #9da7b3 }
    .c0 { --c: #6cb2ff } .c1 { --c: #ff9d5c } .c2 { --c: #55d39b }
    .c3 { --c: #c79bff } .c4 { --c: #e3b341 } .c5 { --c: #ff85bd }
  }
"""

Place = Callable[[float], float]  # of a value, in pixels


def draw(chart: Chart) -> str:
    """The picture as one SVG document that ends with a line feed."""
    y_ticks = _y_ticks(chart)
    at_y = _placed(chart.y_scale, y_ticks[0], y_ticks[-1], BOTTOM, TOP)
    parts = [*_head(chart), *_y_axis(y_ticks, at_y), *_legend(chart)]
    parts += _bars(chart, at_y) if chart.groups else _lines(chart, at_y)
    parts += [_horizontal("limit", at_y(limit.value)) for limit in chart.limits]
    return "\n".join([*parts, "</svg>"]) + "\n"


def number(value: float) -> str:
    """A value for reading: three digits, no trailing zeros, thousands apart."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value)) + 1e-9))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _head(chart: Chart) -> list[str]:
    middle = (TOP + BOTTOM) // 2
    told = "; ".join(
        f"{one.name}: " + ", ".join(f"{_place_name(chart, x)} {number(one.values[x])}" for x in sorted(one.values))
        for one in chart.series
    )
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t d">',
        f'<title id="t">{escape(chart.title)}</title>',
        f'<desc id="d">{escape(f"{chart.y_label} by {chart.x_label}. {told}")}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="16" y="28">{escape(chart.title)}</text>',
        f'<text class="small" x="16" y="48">{escape(chart.note)}</text>',
        f'<text text-anchor="middle" x="{(LEFT + RIGHT) // 2}" y="{HEIGHT - 20}">{escape(chart.x_label)}</text>',
        f'<text text-anchor="middle" transform="translate(20 {middle}) rotate(-90)">{escape(chart.y_label)}</text>',
    ]


def _place_name(chart: Chart, x: float) -> str:
    return chart.groups[int(x)] if chart.groups else number(x)


def _y_ticks(chart: Chart) -> list[float]:
    values = [y for one in chart.series for y in one.values.values()] + [limit.value for limit in chart.limits]
    if chart.y_scale is Scale.LOG:
        return log_ticks(min(values), max(values))
    return nice_ticks(min(0.0, *values), (ROOM_ABOVE if chart.groups else 1.0) * max(0.0, *values))


def _placed(scale: Scale, low: float, high: float, first: float, last: float) -> Place:
    """From a value to pixels between `first` and `last`."""
    if scale is Scale.LOG:
        span = math.log(high / low) or 1.0
        return lambda value: first + (last - first) * math.log(value / low) / span
    return lambda value: first + (last - first) * (value - low) / ((high - low) or 1.0)


def _y_axis(ticks: Sequence[float], at_y: Place) -> list[str]:
    parts = []
    for tick in ticks:
        y = at_y(tick)
        parts.append(_horizontal("axis" if tick in (0.0, ticks[0]) else "grid", y))
        parts.append(f'<text class="small" text-anchor="end" x="{LEFT - 8}" y="{y + 4:.1f}">{number(tick)}</text>')
    return parts


def _horizontal(kind: str, y: float) -> str:
    return f'<line class="{kind}" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _legend(chart: Chart) -> list[str]:
    """Return what every line, bar and limit is, from left to right."""
    parts, x = [], 16.0
    for order, one in enumerate(chart.series):
        swatch, width = (_bar_swatch(order, x), 18) if chart.groups else (_line_swatch(order, x, one), 28)
        parts += [swatch, f'<text x="{x + width:.0f}" y="{LEGEND_Y}">{escape(one.name)}</text>']
        x += width + LETTER * len(one.name) + 20
    for limit in chart.limits:
        parts.append(f'<path class="limit" d="M{x:.0f} {LEGEND_Y - 4}h22"/>')
        parts.append(f'<text x="{x + 28:.0f}" y="{LEGEND_Y}">{escape(limit.name)}</text>')
        x += 48 + LETTER * len(limit.name)
    return parts


def _bar_swatch(order: int, x: float) -> str:
    return f'<rect class="bar c{order % N_COLOURS}" x="{x:.0f}" y="{LEGEND_Y - 10}" width="12" height="12"/>'


def _line_swatch(order: int, x: float, one: Series) -> str:
    line = f'<path class="{"guide" if one.is_guide else "line"} c{order % N_COLOURS}" d="M{x:.0f} {LEGEND_Y - 4}h22"/>'
    return line if one.is_guide else line + _mark(order, x + 11, LEGEND_Y - 4)


def _mark(order: int, x: float, y: float) -> str:
    """Another form for every line, so that colours need not be told apart."""
    colour = f'class="mark c{order % N_COLOURS}"'
    forms = (
        f'<circle {colour} cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>',
        f'<rect {colour} x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>',
        f'<path {colour} d="M{x:.1f} {y - 5.5:.1f}l5.5 9.5h-11z"/>',
        f'<path {colour} d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z"/>',
    )
    return forms[order % len(forms)]


def _lines(chart: Chart, at_y: Place) -> list[str]:
    places = chart.places
    first = places[0] if chart.x_scale is Scale.LOG else min(0.0, places[0])
    at_x = _placed(chart.x_scale, first, places[-1], LEFT + 12, RIGHT - 28)
    parts = [
        f'<text class="small" text-anchor="middle" x="{at_x(x):.1f}" y="{BOTTOM + 20}">{number(x)}</text>'
        for x in places
    ]
    for order, one in enumerate(chart.series):
        points = [(at_x(x), at_y(one.values[x])) for x in sorted(one.values)]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path class="{"guide" if one.is_guide else "line"} c{order % N_COLOURS}" d="{path}"/>')
        parts += [] if one.is_guide else [_mark(order, x, y) for x, y in points]
    return parts


def _bars(chart: Chart, at_y: Place) -> list[str]:
    step = (RIGHT - LEFT) / len(chart.groups)
    width = step * GROUP_SHARE / len(chart.series)
    parts = [
        f'<text text-anchor="middle" x="{LEFT + step * (group + 0.5):.1f}" y="{BOTTOM + 20}">{escape(name)}</text>'
        for group, name in enumerate(chart.groups)
    ]
    for order, one in enumerate(chart.series):
        for group, value in one.values.items():
            x = LEFT + step * (group + (1 - GROUP_SHARE) / 2) + width * order
            top, zero = min(at_y(value), at_y(0.0)), at_y(0.0)
            size = f'width="{width - 2:.1f}" height="{abs(at_y(value) - zero):.1f}"'
            parts.append(f'<rect class="bar c{order % N_COLOURS}" x="{x:.1f}" y="{top:.1f}" {size}/>')
            label = f'text-anchor="middle" x="{x + width / 2:.1f}" y="{top - 5:.1f}"'
            parts.append(f'<text class="small" {label}>{number(value)}</text>')
    return parts
