"""What rooms show on the page of the metrics."""

from __future__ import annotations

from types import SimpleNamespace

from strandline.room import CounterMetric, GaugeMetric
from strandline.server.metrics import Metrics

LATE = CounterMetric("strandline_trains_late", "Trains that were late.", "line")
SPEED = GaugeMetric("strandline_train_speed", "How fast a train is now.", "line")


def test_counters_and_gauges_of_rooms_are_shown():
    """A gauge can go down, and is read again for every page."""
    speeds = {"north": 80.5}
    room = SimpleNamespace(counts=lambda: {LATE: {"north": 3}}, gauges=lambda: {SPEED: speeds})
    metrics = Metrics([room], [])
    text = metrics.render().decode()
    assert 'strandline_trains_late_total{line="north"} 3.0' in text
    assert "# TYPE strandline_train_speed gauge" in text
    assert 'strandline_train_speed{line="north"} 80.5' in text
    speeds["north"] = 0
    assert 'strandline_train_speed{line="north"} 0.0' in metrics.render().decode()
