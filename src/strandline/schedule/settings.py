"""The settings of the schedule, and the sections it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from strandline.config import setting


@dataclass(frozen=True)
class ScheduleSettings:
    url: str = setting(
        "",
        "Database of the schedules: `postgresql://user:env:NAME@host:port/database` with the password in the "
        "environment variable NAME. If empty: a file in the data directory, for the processes of one machine.",
    )
    news: str = setting(
        "notify",
        "How nodes learn of new messages on PostgreSQL: `notify` (they send each other NOTIFY and look every "
        "200 ms) or `look` (every 20 ms; for servers and connection pools without LISTEN).",
    )
    max_clock_offset_ms: int = setting(
        500,
        "A node gives no leases while its clock differs from the database's by more than this, or after the "
        "database's time was set back by more than this.",
        minimum=1,
    )


class ScheduleSections(Protocol):
    """The sections that the schedule reads."""

    @property
    def schedule(self) -> ScheduleSettings: ...
