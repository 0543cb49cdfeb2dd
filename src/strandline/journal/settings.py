"""The settings of the journal, and the sections it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from strandline.config import setting
from strandline.log.settings import LogSections


@dataclass(frozen=True)
class JournalSettings:
    url: str = setting(
        "",
        "Store of replicated journals: `postgresql://user:env:NAME@host:port/database` or "
        "`cassandra://user:env:NAME@host:port/keyspace`, with the password in the environment variable NAME. If "
        "empty: a file in the data directory, for the processes of one machine.",
    )
    log_retention_ms: int = setting(
        86_400_000,
        "How long actions stay in the log after they were replicated (1 day). Actions that are not replicated are "
        "never removed, nor are those of adopted topics.",
        minimum=0,
    )
    cached_actions: int = setting(
        20_000,
        "Actions of one partition that a node keeps in memory, without their events: about 10 MB. If replication "
        "is further behind, reads become slower.",
        minimum=1,
    )


class JournalSections(LogSections, Protocol):
    """The sections that the journal reads."""

    @property
    def journal(self) -> JournalSettings: ...
