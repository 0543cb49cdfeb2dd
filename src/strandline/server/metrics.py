"""Metrics for Prometheus. Each server has its own registry, so tests can run several in one process."""

from __future__ import annotations

import heapq
import platform
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from strandline.room import CounterMetric, Durations, HistogramMetric, Room
from strandline.server.pools import Pools

#: The most values of a counter or gauge, and the label of the sum of further counters.
MOST_LABELS = 1_000
OTHERS = "_others"
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics(Collector):
    """The metrics of the server and its process, the counters of its route modules, and the metrics of the rooms.

    A page stays small: a counter or gauge has at most `MOST_LABELS` values. Further counters are summed up, and of
    gauges the largest are shown.
    """

    def __init__(self, rooms: Collection[Room], pools: Pools) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "strandline_http_requests",
            "Requests answered, by method, route and status.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "strandline_http_request_seconds",
            "Time to answer, by method and route; for streams, to their first byte.",
            ["method", "route"],
            registry=self._registry,
        )
        self._answered: dict[tuple[str, str, int], tuple[Callable[[], None], Callable[[float], None]]] = {}
        self._counts: dict[CounterMetric, Tally[str]] = {}
        self._rooms = rooms
        self._pools = pools
        self._registry.register(self)
        build = Gauge(
            "strandline_build_info",
            "The versions of this node; always 1.",
            ["version", "python"],
            registry=self._registry,
        )
        build.labels(version("strandline"), platform.python_version()).set(1)
        ProcessCollector(registry=self._registry)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        key = (method, route, status)
        found = self._answered.get(key)
        if found is None:  # looking up labels costs more than counting
            count = self._requests.labels(method, route, str(status)).inc
            found = self._answered[key] = count, self._seconds.labels(method, route).observe
        found[0]()
        found[1](seconds)

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Add a gauge whose value is read when the metrics are."""
        Gauge(name, help_text, registry=self._registry).set_function(read)

    def count(self, metric: CounterMetric, label: str, amount: int) -> None:
        """Add to a counter of a route module. Call it on the event loop only: it takes no lock."""
        self._counts.setdefault(metric, Tally())[label] += amount

    def families(self) -> list[Metric]:
        """All metrics of the server and the process, with their help."""
        return [*self._registry.collect()]

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The calls of all pools, the counters of route modules, and the metrics of rooms."""
        calls = GaugeMetricFamily(
            "strandline_blocking_calls", "Calls in threads, by what they wait for.", labels=["pool", "state"]
        )
        for pool in self._pools:
            calls.add_metric([pool.what, "running"], pool.running)
            calls.add_metric([pool.what, "waiting"], pool.waiting)
        yield calls
        for counts in (self._counts, *(room.counts() for room in self._rooms)):
            for metric, values in counts.items():
                family = CounterMetricFamily(metric.name, metric.help, labels=[metric.label])
                for label, value in _bounded(values).items():
                    family.add_metric([label], value)
                yield family
        for room in self._rooms:
            for gauge, readings in room.gauges().items():
                gauges = GaugeMetricFamily(gauge.name, gauge.help, labels=[gauge.label])
                for label, reading in _largest(readings).items():
                    gauges.add_metric([label], reading)
                yield gauges
            for histogram, durations in room.histograms().items():
                yield _histogram(histogram, durations)


def _bounded(values: Mapping[str, int]) -> Mapping[str, int]:
    """The oldest labels, which stay the same, and the sum of all others."""
    if len(values) <= MOST_LABELS:
        return values
    items = [*values.items()]
    return {**dict(items[:MOST_LABELS]), OTHERS: sum(value for _, value in items[MOST_LABELS:])}


def _largest(values: Mapping[str, float]) -> Mapping[str, float]:
    if len(values) <= MOST_LABELS:
        return values
    return dict(heapq.nlargest(MOST_LABELS, values.items(), key=lambda item: item[1]))


def _histogram(metric: HistogramMetric, durations: Mapping[str, Durations]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.name, metric.help, labels=[metric.label])
    for label, found in durations.items():
        counts, total = found.read()
        limits = [*map(str, Durations.LIMITS), "+Inf"]
        family.add_metric([label], [*zip(limits, counts, strict=True)], total)
    return family
