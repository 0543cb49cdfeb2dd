"""What Prometheus is told. One registry per node, so that tests may run several in one process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "strandline_http_requests",
            "Requests answered.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "strandline_http_request_seconds",
            "Time to answer; for streams, to their first byte.",
            ["method", "route"],
            registry=self._registry,
        )
        self._published = Counter(
            "strandline_published_events", "Events published.", ["event_type"], registry=self._registry
        )
        self._rejected = Counter(
            "strandline_rejected_events",
            "Events of publishes that were not, or not entirely, stored.",
            ["event_type"],
            registry=self._registry,
        )
        self._streamed = Counter(
            "strandline_streamed_events", "Events sent to streams.", ["event_type"], registry=self._registry
        )
        self._removed = Counter(
            "strandline_removed_timelines", "Timelines removed.", ["event_type"], registry=self._registry
        )
        self._unread = Counter(
            "strandline_removed_unread_events",
            "Events of removed timelines that a subscription had not read, counted for each subscription.",
            ["event_type"],
            registry=self._registry,
        )
        self.streams = Gauge("strandline_open_streams", "Streams open now.", registry=self._registry)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def published(self, event_type: str, submitted: int, rejected: int) -> None:
        self._published.labels(event_type).inc(submitted)
        if rejected:
            self._rejected.labels(event_type).inc(rejected)

    def streamed(self, event_type: str, events: int) -> None:
        self._streamed.labels(event_type).inc(events)

    def removed(self, event_type: str, unread: int) -> None:
        """A timeline went, with so many events that somebody had not read."""
        self._removed.labels(event_type).inc()
        self._unread.labels(event_type).inc(unread)

    def render(self) -> bytes:
        return generate_latest(self._registry)
