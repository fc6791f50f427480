"""Metrics for Prometheus: this web process's counters, and the counters that all backbones write to Redis.

Scrape each web process for its own counters; any web process returns those of all backbones. `routes` counts requests
here, `service.health` serves /metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from backbone.api.chat.usage import SOURCES, UsageTally

_LATENCIES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

# Names in the backbones' statistics (`backbone_process`) that are counters; all others are gauges.
_COUNTERS = frozenset({"steps", "tokens", "drafted_tokens", "accepted_tokens", "completed", "failed"})
_BY_SOURCE = {f"row_experts_{source}": source for source in SOURCES}


class ApiMetrics:
    """The web process's counters, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "kvasir_api_requests", "Requests that were answered", ["endpoint", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "kvasir_api_request_seconds", "Request to the reply's end", ["endpoint"],
            buckets=_LATENCIES_S, registry=self.registry,
        )  # fmt: skip
        self.first_seconds = Histogram(
            "kvasir_api_first_token_seconds", "Request to the first token", ["endpoint"],
            buckets=_LATENCIES_S, registry=self.registry,
        )  # fmt: skip
        self.open = Gauge("kvasir_api_open_generations", "Generations that are being read now", registry=self.registry)
        self.abandoned = Counter(
            "kvasir_api_abandoned", "Generations whose client went away or that failed", registry=self.registry
        )
        self.tokens = Counter("kvasir_api_tokens", "Tokens of finished generations", ["kind"], registry=self.registry)
        self.row_experts = Counter(
            "kvasir_api_row_experts", "Row-experts of finished generations", ["source"], registry=self.registry
        )

    def count_usage(self, tally: UsageTally) -> None:
        """Count a reply's tokens and row-experts."""
        self.tokens.labels("prompt").inc(tally.prompt_tokens)
        self.tokens.labels("completion").inc(tally.completion_tokens)
        for source in SOURCES:
            self.row_experts.labels(source).inc(tally.by_source[source])


METRICS = ApiMetrics()


class Measurement:
    """Counts one generation, from its request to its end."""

    def __init__(self, metrics: ApiMetrics, endpoint: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._endpoint = endpoint
        self._clock = clock
        self._began = clock()
        self._has_token = False
        metrics.open.inc()

    def token(self) -> None:
        """Record the latency of the first token."""
        if not self._has_token:
            self._has_token = True
            self._metrics.first_seconds.labels(self._endpoint).observe(self._clock() - self._began)

    def close(self, tally: UsageTally, *, is_complete: bool) -> None:
        """Count the end of the generation."""
        self._metrics.open.dec()
        self._metrics.seconds.labels(self._endpoint).observe(self._clock() - self._began)
        self._metrics.count_usage(tally)
        if not is_complete:
            self._metrics.abandoned.inc()


class BackboneStats(Collector):
    """The backbones' counters at one moment, as metrics."""

    def __init__(self, stats: Mapping[str, Mapping[str, float]], queue_length: int) -> None:
        self._stats = stats
        self._queue_length = queue_length

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, each with one sample for every backbone that reports it."""
        yield GaugeMetricFamily("kvasir_queue_length", "Requests that no backbone has taken", self._queue_length)
        yield GaugeMetricFamily("kvasir_backbones", "Backbones with a valid lease", len(self._stats))
        names = {name for fields in self._stats.values() for name in fields}
        for name in sorted(names - _BY_SOURCE.keys()):
            yield self._family(name)
        yield self._by_source()

    def _family(self, name: str) -> Metric:
        kind = CounterMetricFamily if name in _COUNTERS else GaugeMetricFamily
        family = kind(f"kvasir_backbone_{name}", f"The backbone's {name.replace('_', ' ')}", labels=["backbone"])
        for backbone_id, fields in self._stats.items():
            if name in fields:
                family.add_metric([backbone_id], fields[name])
        return family

    def _by_source(self) -> Metric:
        words = "Row-experts by source"
        family = CounterMetricFamily("kvasir_backbone_row_experts", words, labels=["backbone", "source"])
        for backbone_id, fields in self._stats.items():
            for name, source in _BY_SOURCE.items():
                if name in fields:
                    family.add_metric([backbone_id, source], fields[name])
        return family


def exposition(metrics: ApiMetrics, backbones: BackboneStats) -> bytes:
    """Return all metrics in Prometheus's text format."""
    passing = CollectorRegistry(auto_describe=False)
    passing.register(backbones)
    return generate_latest(metrics.registry) + generate_latest(passing)
