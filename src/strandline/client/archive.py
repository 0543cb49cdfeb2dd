"""The archive room over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import msgspec

from strandline.archive.model import HourName, hour_name, parse_hour
from strandline.archive.room import (
    MAX_PERIODS_MS,
    Archive,
    ArchiveStatus,
    HourCheck,
    HourReport,
    HourState,
    HourStatus,
    PeriodStatus,
    parse_span,
)
from strandline.client.transport import Transport


class HttpArchive(Archive):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def status(self) -> list[ArchiveStatus]:
        return self._transport.get("/archive", list[ArchiveStatus])

    def hours(
        self,
        event_type: str,
        start: HourName | None = None,
        end: HourName | None = None,
        state: HourState | None = None,
    ) -> Iterator[HourStatus]:
        query: dict[str, str | int] = {"limit": 1000}
        if start is not None:
            query["from"] = _name(start)
        if end is not None:
            query["to"] = _name(end)
        if state is not None:
            query["state"] = state
        return self._transport.pages(f"{_path(event_type)}/hours", HourStatus, query)

    def hour(self, event_type: str, hour: HourName, wait_ms: int = 0) -> HourReport:
        path = f"{_path(event_type)}/hours/{_name(hour)}"
        return self._transport.get(path, HourReport, {"wait_ms": wait_ms}, wait_s=wait_ms / 1000)

    def is_ready(self, event_type: str, hour: HourName) -> bool:
        return self.hour(event_type, hour).state == "ready"

    def check(self, event_type: str, hour: HourName, after: str = "") -> HourCheck:
        path = f"{_path(event_type)}/hours/{_name(hour)}/verify"
        found = self._transport.repeatable("POST", path, writes=False, params={"after": after})
        return msgspec.json.decode(found.content, type=HourCheck)

    def periods(self, start: HourName, end: HourName) -> Iterator[PeriodStatus]:
        from_ms, to_ms = parse_span(start, end)
        starts = range(from_ms, to_ms, MAX_PERIODS_MS)
        return (period for start_ms in starts for period in self._periods(start_ms, to_ms))

    def _periods(self, from_ms: int, to_ms: int) -> list[PeriodStatus]:
        span = {"from": hour_name(from_ms), "to": hour_name(min(from_ms + MAX_PERIODS_MS, to_ms))}
        return self._transport.get("/archive/periods", list[PeriodStatus], span)

    def close(self) -> None:
        """Nothing to do: `Remote` closes the transport."""


def _path(event_type: str) -> str:
    return f"/archive/{quote(event_type, safe='')}"


def _name(hour: HourName) -> str:
    """The hour in the form that the server expects; Invalid if it is not an hour."""
    return hour_name(parse_hour(hour))
