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


class ScheduleSections(Protocol):
    """The sections that the schedule reads."""

    @property
    def schedule(self) -> ScheduleSettings: ...
