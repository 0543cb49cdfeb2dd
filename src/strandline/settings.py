"""All settings of a process: one line per section. A room declares its section beside its own code."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.archive.settings import ArchiveSettings
from strandline.config import Sections
from strandline.coordination.settings import CoordinationSettings
from strandline.feeds.fanout.values import FanoutOptions
from strandline.feeds.settings import FeedSettings
from strandline.journal.settings import JournalSettings
from strandline.log.settings import CatalogSettings, LogSettings
from strandline.logging_setup import LoggingSettings
from strandline.schedule.relay.values import RelayOptions
from strandline.schedule.settings import ScheduleSettings
from strandline.server.settings import ServerSettings


@dataclass(frozen=True)
class Settings(Sections):
    server: ServerSettings = field(default_factory=ServerSettings)
    log: LogSettings = field(default_factory=LogSettings)
    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    coordination: CoordinationSettings = field(default_factory=CoordinationSettings)
    archive: ArchiveSettings = field(default_factory=ArchiveSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    journal: JournalSettings = field(default_factory=JournalSettings)
    feeds: FeedSettings = field(default_factory=FeedSettings)
    fanout: FanoutOptions = field(default_factory=FanoutOptions)
    relay: RelayOptions = field(default_factory=RelayOptions)
    logs: LoggingSettings = field(default_factory=LoggingSettings)
