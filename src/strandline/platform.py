"""`strandline.open`: all rooms in this process, over one data directory."""

from __future__ import annotations

from pathlib import Path

from strandline.archive.local import LocalArchive
from strandline.clock import Clock, system_clock
from strandline.engine import decoders
from strandline.engine.connect import Databases
from strandline.feeds.local import LocalFeeds
from strandline.journal.local import LocalJournal, LocalJournals
from strandline.log.local import LocalLog
from strandline.log.open import open_log
from strandline.room import Room, Rooms, room
from strandline.schedule.local import LocalMessages, LocalSchedules
from strandline.settings import Settings


class Platform(Rooms[Room]):
    """The rooms of one data directory. A method marked with `room` opens a room and may use the rooms above it."""

    def __init__(self, data: Path, settings: Settings, clock: Clock) -> None:
        decoders.prepare_types()
        self.data = data
        self.settings = settings
        self.clock = clock
        self.databases = Databases(data)
        super().__init__()

    @room
    def log(self) -> LocalLog:
        return open_log(self.data, self.databases, self.settings, self.clock)

    @room
    def archive(self) -> LocalArchive:
        return LocalArchive(self.log, self.databases, self.data, self.settings, self.clock)

    @room
    def schedules(self) -> LocalSchedules:
        return LocalSchedules(self.databases, self.settings, self.clock, self.log.node)

    @room
    def journals(self) -> LocalJournals:
        return LocalJournals(self.log, self.databases, self.settings, self.clock)

    @room
    def feeds(self) -> LocalFeeds:
        return LocalFeeds(self.log, self.databases, self.settings, self.clock)

    def journal(self, topic: str) -> LocalJournal:
        return self.journals.of(topic)

    def schedule(self, name: str) -> LocalMessages:
        return self.schedules.of(name)

    def __repr__(self) -> str:
        return f"strandline.open({str(self.data)!r})"

    def close(self) -> None:
        super().close()
        self.databases.close()


def open(path: str | Path = "data", *, settings: Settings | None = None) -> Platform:  # noqa: A001 - as users read it
    """Open a data directory, which is created if missing. For a `.toml` settings file, open its directory.

    Several processes may have the same directory open.
    """
    data = Path(path)
    file: Path | None = None
    if data.suffix == ".toml":
        data, file = data.parent, data
    elif (data / "strandline.toml").exists():
        file = data / "strandline.toml"
    return Platform(data, settings or Settings.load(file), system_clock())
