"""The gauges of the archive: how far it is behind. Reading them asks neither the ledger nor the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strandline.archive.model import parse_hour
from strandline.archive.room import ArchiveStatus
from strandline.log.upkeep import guarded
from strandline.room import GaugeMetric, GaugeValues

#: How often `measure` is to be called.
MEASURE_INTERVAL_MS = 15_000

_LAG = GaugeMetric("strandline_archive_lag", "Events that are not archived yet.", "event_type")
_READY = GaugeMetric(
    "strandline_archive_last_ready_seconds", "Start of the newest hour that is ready, in Unix time.", "event_type"
)
_DUE = GaugeMetric("strandline_archive_due_hours", "Hours that are over and not ready yet.", "event_type")


class ArchiveGauges:
    def __init__(self, status: Callable[[], Sequence[ArchiveStatus]]) -> None:
        self._status = status
        self._values: dict[GaugeMetric, dict[str, float]] = {_LAG: {}, _READY: {}, _DUE: {}}

    def values(self) -> GaugeValues:
        return self._values

    def measure(self) -> None:
        with guarded("measuring the archive"):
            found = [one for one in self._status() if not one.retired]
            self._values = {
                _LAG: {one.event_type: one.lag for one in found if one.lag is not None},
                _READY: {
                    one.event_type: parse_hour(one.last_ready) / 1000
                    for one in found
                    if one.last_ready is not None
                },
                _DUE: {one.event_type: one.due_hours for one in found},
            }
