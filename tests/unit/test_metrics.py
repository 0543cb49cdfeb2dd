"""What rooms show on the page of the metrics."""

from __future__ import annotations

from types import SimpleNamespace

from strandline.room import CounterMetric, Durations, GaugeMetric, HistogramMetric
from strandline.server.metrics import MOST_LABELS, OTHERS, Metrics

LATE = CounterMetric("strandline_trains_late", "Trains that were late.", "line")
SPEED = GaugeMetric("strandline_train_speed", "How fast a train is now.", "line")


def opened(counts=None, gauges=None, histograms=None):
    """A room with these metrics."""
    return SimpleNamespace(
        counts=lambda: counts or {}, gauges=lambda: gauges or {}, histograms=lambda: histograms or {}
    )


def test_counters_and_gauges_of_rooms_are_shown():
    """A gauge can go down, and is read again for every page."""
    speeds = {"north": 80.5}
    room = opened(counts={LATE: {"north": 3}}, gauges={SPEED: speeds})
    metrics = Metrics([room], [])
    text = metrics.render().decode()
    assert 'strandline_trains_late_total{line="north"} 3.0' in text
    assert "# TYPE strandline_train_speed gauge" in text
    assert 'strandline_train_speed{line="north"} 80.5' in text
    speeds["north"] = 0
    assert 'strandline_train_speed{line="north"} 0.0' in metrics.render().decode()


def test_durations_are_a_histogram():
    """Each limit counts what is not longer; the last one counts all."""
    stops = HistogramMetric("strandline_stop_seconds", "How long a train stops.", "line")
    times = Durations()
    for seconds in (0.0005, 0.3, 60):
        times.add(seconds)
    text = Metrics([opened(histograms={stops: {"north": times}})], []).render().decode()
    shown = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("strandline_stop_seconds"))
    for limit, count in (("0.0005", 1), ("0.25", 1), ("0.5", 2), ("10.0", 2), ("+Inf", 3)):
        assert float(shown[f'strandline_stop_seconds_bucket{{le="{limit}",line="north"}}']) == count
    assert float(shown['strandline_stop_seconds_count{line="north"}']) == 3
    assert float(shown['strandline_stop_seconds_sum{line="north"}']) == 60.3005


def test_a_page_has_a_limited_number_of_labels():
    """Further counters are summed up, so that nothing is lost from sums. Of gauges the largest are shown."""
    many = {str(number): number for number in range(MOST_LABELS + 10)}
    text = Metrics([opened(counts={LATE: many}, gauges={SPEED: many})], []).render().decode()
    lates = [line for line in text.splitlines() if line.startswith("strandline_trains_late_total{")]
    speeds = [line for line in text.splitlines() if line.startswith("strandline_train_speed{")]
    assert (len(lates), len(speeds)) == (MOST_LABELS + 1, MOST_LABELS)
    assert sum(float(line.rsplit(" ", 1)[1]) for line in lates) == sum(many.values())
    assert any(OTHERS in line for line in lates)
    assert 'strandline_train_speed{line="0"}' not in text
    assert f'strandline_train_speed{{line="{MOST_LABELS + 9}"}}' in text


def test_the_node_describes_itself():
    """Its versions, and the resources of the process."""
    text = Metrics([], []).render().decode()
    assert 'strandline_build_info{python="3.' in text
    assert "process_open_fds " in text
    assert "process_resident_memory_bytes " in text
