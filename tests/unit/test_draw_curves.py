"""Pictures of benchmarks: what they show comes from the figures, and every committed one is what its figures make."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.charts import draw_curves
from benchmarks.charts.chart import Chart, Limit, Scale, Series, log_ticks, nice_ticks
from benchmarks.charts.curves import CURVES
from benchmarks.charts.draw_curves import FIGURES, differing, pictures
from benchmarks.charts.svg_chart import BOTTOM, LEFT, LEGEND_Y, LETTER, RIGHT, TOP, WIDTH, draw, number
from kvasir.errors import ConfigError

SVG = "{http://www.w3.org/2000/svg}"
MADE_UP: dict[str, dict[str, Any]] = {
    "bench_scale": {"tok_s": {"1": 3.0, "2": 6.0, "8": 20.0}, "efficiency_8": 0.833},
    "bench_latency_hiding": {
        "tok_s": {n: {"0": 10.0, "5": 9.0, "20": 5.0} for n in ("1", "8", "64")},
        "one_group_vs_rtt0_64": {"0": 1.0, "20": 0.4},
    },
    "bench_hot_cache": {f"share_{which}": {"0.1": 0.4, "0.5": 0.9} for which in ("ours", "best_fixed", "lru")},
    "bench_vs_llamacpp": {
        f"ratio_{which}{case}": 1.25
        for which in ("", "repacked_")
        for case in ("tok_s_1", "tok_s_8", "tok_s_32", "pp512")
    },
    "bench_overhead": {
        f"overhead_{which}pct_{batch}": -1.5 for which in ("", "cpu_", "sum_", "sum_cpu_") for batch in (1, 8, 64)
    },
    "bench_wire": {
        "hot_part": 0.25,
        **{
            f"mb_per_token_{n}": {
                reply: {"down": 0.5, "up": 1.0, "total": 1.5}
                for reply in ("f32", "f16", "sum", "sum_colocated", "sum_colocated_hot")
            }
            for n in (4, 8, 32)
        },
    },
    "bench_speculate": {"gain": {"free": {"0": {"1": 1.0, "8": 1.1}, "20": {"1": 1.5, "8": 1.4}}}},
}  # fmt: skip


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # noqa: S314  # written by `draw` a moment ago


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in parsed(svg).iter(f"{SVG}text")]


def test_every_curve_is_drawn_from_made_up_figures(tmp_path: Path) -> None:
    assert MADE_UP.keys() == CURVES.keys()
    for name, figures in MADE_UP.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**figures, "machine": "m", "commit": "c"}))
    (tmp_path / "bench_other.json").write_text("{}")  # has no picture
    found = pictures(tmp_path)
    assert {path.name for path in found} == {f"{name}.svg" for name in MADE_UP}
    assert differing(found) == list(found)
    for path, svg in found.items():
        path.write_text(svg, encoding="utf-8")
        assert "script" not in svg and "href" not in svg and "prefers-color-scheme: dark" in svg
        assert parsed(svg).find(f"{SVG}title") is not None
        assert all(word not in svg for word in ("nan", "inf,"))
    assert differing(found) == [] and pictures(tmp_path) == found
    (tmp_path / "bench_overhead.svg").write_text("old", encoding="utf-8")
    assert differing(found) == [tmp_path / "bench_overhead.svg"]


def test_a_curve_follows_its_figures() -> None:
    chart = CURVES["bench_latency_hiding"](MADE_UP["bench_latency_hiding"])
    *measured, one_group = chart.series
    assert [one.values for one in measured] == [{0.0: 1.0, 5.0: 0.9, 20.0: 0.5}] * 3
    assert one_group.is_guide and one_group.values == {0.0: 1.0, 20.0: 0.4}
    ideal = CURVES["bench_scale"](MADE_UP["bench_scale"]).series[1]
    assert ideal.is_guide and ideal.values == {1.0: 3.0, 2.0: 6.0, 8.0: 24.0}


@pytest.mark.parametrize("name", CURVES)
def test_a_missing_figure_is_named(name: str) -> None:
    for key in MADE_UP[name]:
        figures = {other: value for other, value in MADE_UP[name].items() if other != key}
        with pytest.raises(ConfigError, match=key):
            CURVES[name](figures)


def test_figures_that_do_not_fit_name_their_file(tmp_path: Path) -> None:
    (tmp_path / "bench_overhead.json").write_text('{"overhead_pct_1": "much"}')
    with pytest.raises(ConfigError, match=r"bench_overhead\.json.*overhead_pct_1"):
        pictures(tmp_path)


def test_lines_are_where_their_values_are() -> None:
    chart = Chart("t", "x", "y", [Series("a", {1: 1, 10: 10, 100: 100})], x_scale=Scale.LOG, y_scale=Scale.LOG)
    marks = [mark for mark in parsed(draw(chart)).iter(f"{SVG}circle") if mark.get("cx")][
        1:
    ]  # the first is the legend's
    points = [(float(mark.attrib["cx"]), float(mark.attrib["cy"])) for mark in marks]
    assert points[0][1] == BOTTOM and points[2][1] == TOP
    assert abs(points[1][1] - (TOP + BOTTOM) / 2) < 0.1
    assert abs(points[1][0] - (points[0][0] + points[2][0]) / 2) < 0.1
    assert LEFT <= points[0][0] < points[2][0] <= RIGHT


def test_bars_begin_at_zero_and_carry_their_numbers() -> None:
    chart = Chart("t", "x", "y", [Series("a", {0: 2.0, 1: -1.0})], groups=("one", "two"), limits=[Limit("goal", 1.5)])
    svg = draw(chart)
    bars = [bar for bar in parsed(svg).iter(f"{SVG}rect") if bar.get("class") == "bar c0"][1:]
    up, down = ((float(bar.attrib["y"]), float(bar.attrib["height"])) for bar in bars)
    assert abs(up[0] + up[1] - down[0]) < 0.11  # both touch the line of 0
    assert abs(up[1] - 2 * down[1]) < 0.11
    assert {"2", "-1", "one", "two", "goal"} <= set(texts(svg))


def test_names_are_escaped() -> None:
    svg = draw(Chart("<b> & co", "x", "y", [Series("a", {0: 1, 1: 2})]))
    assert "<b>" not in svg and "<b> & co" in texts(svg)


@pytest.mark.parametrize("values", [{}, {1.0: float("nan")}, {1.0: 0.0}])
def test_a_chart_that_shows_nothing_is_refused(values: dict[float, float]) -> None:
    with pytest.raises(ConfigError, match="nothing here"):
        Chart("nothing here", "x", "y", [Series("a", values)], y_scale=Scale.LOG)


def test_ticks_are_round_and_reach_around() -> None:
    assert nice_ticks(0, 3) == [0, 1, 2, 3]
    assert nice_ticks(-3, 31.2) == [-10, 0, 10, 20, 30, 40]
    assert nice_ticks(0, 1.06) == [0, 0.25, 0.5, 0.75, 1.0, 1.25]
    assert log_ticks(3.1, 99) == [2, 5, 10, 20, 50, 100]
    assert log_ticks(1, 1) == [1]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1.0, "1"), (0.9, "0.9"), (1234.5, "1,234"), (31.24, "31.2"), (-0.0123, "-0.0123")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_every_committed_picture_is_what_its_figures_make() -> None:
    wanted = pictures(FIGURES)
    assert differing(wanted) == [], "run `python -m benchmarks.charts.draw_curves`"
    assert set(FIGURES.glob("*.svg")) == set(wanted)


def test_every_legend_fits_its_picture() -> None:
    for path, svg in pictures(FIGURES).items():
        names = [element for element in parsed(svg).iter(f"{SVG}text") if element.get("y") == str(LEGEND_Y)]
        assert names
        ends = [float(element.attrib["x"]) + LETTER * len(element.text or "") for element in names]
        assert max(ends) <= WIDTH, path.name


def test_the_page_shows_every_picture() -> None:
    page = (FIGURES.parent / "develop" / "performance.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"!\[[^\]]+\]\(../figures/(\w+\.svg)\)", page))
    assert shown == {path.name for path in pictures(FIGURES)}


def test_the_command_writes_and_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bench_overhead.json").write_text(json.dumps(MADE_UP["bench_overhead"]))
    monkeypatch.setattr(draw_curves, "FIGURES", tmp_path)
    monkeypatch.setattr("sys.argv", ["draw_curves", "--check"])
    with pytest.raises(SystemExit, match=r"bench_overhead\.svg"):
        draw_curves.main()
    monkeypatch.setattr("sys.argv", ["draw_curves"])
    draw_curves.main()
    assert capsys.readouterr().out.strip().endswith("bench_overhead.svg")
    monkeypatch.setattr("sys.argv", ["draw_curves", "--check"])
    with pytest.raises(SystemExit) as ended:
        draw_curves.main()
    assert ended.value.code == 0
