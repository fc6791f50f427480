"""Which picture each benchmark's figures make. `draw_curves` calls it with the JSON lines kept in docs/figures.

A key that is missing is an error that names it: a picture never leaves out what its page talks about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.charts.chart import Chart, Limit, Scale, Series
from kvasir.errors import ConfigError

Figures = Mapping[str, Any]


def by_name(figures: Figures, *keys: str) -> Mapping[str, Any]:
    """Return what lies below a path of keys, by name."""
    found: Any = figures
    for number, key in enumerate(keys, start=1):
        found = found.get(key)
        if not isinstance(found, Mapping):
            raise ConfigError(f"the figures have no values below {'.'.join(keys[:number])!r}")
    return found  # type: ignore[no-any-return]  # what JSON gives


def by_number(figures: Figures, *keys: str) -> dict[float, float]:
    """The values below a path of keys, by the numbers that are their keys."""
    return {float(key): float(value) for key, value in by_name(figures, *keys).items()}


def value(figures: Figures, key: str) -> float:
    """One figure."""
    if not isinstance(figures.get(key), int | float):
        raise ConfigError(f"the figures have no number {key!r}; they have {', '.join(figures)}")
    return float(figures[key])


def _bars(figures: Figures, patterns: Mapping[str, str], cases: Sequence[str]) -> list[Series]:
    """One series a pattern such as "ratio_{}", one group a case."""
    return [
        Series(name, {float(group): value(figures, pattern.format(case)) for group, case in enumerate(cases)})
        for name, pattern in patterns.items()
    ]


def scale(figures: Figures) -> Chart:
    """Tokens a second against the number of workers."""
    measured = by_number(figures, "tok_s")
    first = min(measured)
    ideal = {n: measured[first] * n / first for n in measured}
    return Chart(
        "Throughput against the number of workers",
        "workers",
        "tokens a second",
        [Series("measured", measured), Series("in proportion to the workers", ideal, is_guide=True)],
        x_scale=Scale.LOG,
        y_scale=Scale.LOG,
        note=f"Emulated phones, round trip of 20 ms, 64 sequences, all layers dispatched. Efficiency at 8 workers: "
        f"{value(figures, 'efficiency_8'):.2f}",
    )


def latency_hiding(figures: Figures) -> Chart:
    """Tokens a second against the round trip, by concurrency, as a share of those without one."""
    series = []
    for n in (64, 8, 1):
        tok_s = by_number(figures, "tok_s", str(n))
        series.append(Series(f"{n} at once", {rtt: speed / tok_s[0.0] for rtt, speed in tok_s.items()}))
    series.append(Series("64, one micro-batch", by_number(figures, "one_group_vs_rtt0_64"), is_guide=True))
    return Chart(
        "Throughput against the round trip",
        "round trip, ms",
        "share of the throughput without one",
        series,
        limits=[Limit("goal for 64 at 20 ms", 0.9)],
        note="Emulated workers of one class; every text is the same at every round trip",
    )


def hot_cache(figures: Figures) -> Chart:
    """Share of routed calls that a cache serves, against its size."""
    names = {"share_ours": "measured traffic (ours)", "share_best_fixed": "best fixed set", "share_lru": "LRU"}
    series = [
        Series(name, {100 * size: 100 * share for size, share in by_number(figures, key).items()})
        for key, name in names.items()
    ]
    return Chart(
        "What a hot-expert cache serves",
        "cached experts, per cent of all",
        "calls served, per cent",
        [*series, Series("share of its size", {x: x for x in series[0].values}, is_guide=True)],
        note="The demo model's own routing of its test stories",
    )


def vs_llamacpp(figures: Figures) -> Chart:
    """Our speed by llama.cpp's."""
    cases = ("tok_s_1", "tok_s_8", "tok_s_32", "pp512")
    patterns = {"its weights in place": "ratio_{}", "repacked, its default": "ratio_repacked_{}"}
    return Chart(
        "Exact mode beside llama.cpp",
        "decode by batch, and a prompt",
        "our speed by its speed",
        _bars(figures, patterns, cases),
        groups=("1 sequence", "8 sequences", "32 sequences", "prompt of 512"),
        limits=[Limit("as fast", 1.0)],
        note="Four layers of the 122B's shape, the same file, one thread each, CPU time",
    )


def overhead(figures: Figures) -> Chart:
    """Return what sharding costs."""
    patterns = {
        "replies in f32, wall": "overhead_pct_{}",
        "f32, CPU": "overhead_cpu_pct_{}",
        "sums, wall": "overhead_sum_pct_{}",
        "sums, CPU": "overhead_sum_cpu_pct_{}",
    }
    return Chart(
        "Overhead of a worker behind the relay",
        "sequences at once",
        "more time than in one process, per cent",
        _bars(figures, patterns, ("1", "8", "64")),
        groups=("1", "8", "64"),
        limits=[Limit("goal at 64", 5.0)],
        note="Worker, relay and backbone are processes on one machine; layers of the 122B's widths with 64 experts",
    )


def wire(figures: Figures) -> Chart:
    """Megabytes a token on the wire, by how workers answer."""
    names = {
        "f32": "f32",
        "f16": "f16",
        "sum": "sums",
        "sum_colocated": "and co-located",
        "sum_colocated_hot": f"and {100 * value(figures, 'hot_part'):.0f} % hot",
    }
    workers = ("4", "8", "32")
    series = []
    for key, name in names.items():
        totals = [by_name(figures, f"mb_per_token_{n}", key)["total"] for n in workers]
        series.append(Series(name, dict(enumerate(totals))))
    return Chart(
        "Bytes of a token on the wire",
        "workers that share a layer",
        "megabytes a token, both ways",
        series,
        groups=workers,
        limits=[Limit("goal at 4", 0.8)],
        note="The 122B's shape, steps of 64 rows. A row is 3.1 KB to each worker; replies are one a pair, or sums",
    )


def speculate(figures: Figures) -> Chart:
    """Speed with drafts by the speed without."""
    gain = by_name(figures, "gain")
    series = [
        Series(f"{text}, {ms} ms", dict(enumerate(by_batch.values())))
        for text, by_ms in gain.items()
        for ms, by_batch in by_ms.items()
    ]
    groups = list(next(iter(next(iter(gain.values())).values())))
    return Chart(
        "What drafts bring",
        "sequences at once",
        "speed with drafts by speed without",
        series,
        groups=groups,
        limits=[Limit("no gain", 1.0)],
        note="The demo model, by kind of text and round trip to its workers; every token is the one without drafts",
    )


CURVES: dict[str, Callable[[Figures], Chart]] = {
    "bench_scale": scale,
    "bench_latency_hiding": latency_hiding,
    "bench_hot_cache": hot_cache,
    "bench_vs_llamacpp": vs_llamacpp,
    "bench_overhead": overhead,
    "bench_wire": wire,
    "bench_speculate": speculate,
}
