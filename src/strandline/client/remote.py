"""`strandline.connect`: all rooms of a server, over HTTP."""

from __future__ import annotations

from strandline.client.archive import HttpArchive
from strandline.client.feeds import HttpFeeds
from strandline.client.journal import HttpJournal, HttpJournals
from strandline.client.log import HttpLog
from strandline.client.schedule import HttpMessages, HttpSchedules
from strandline.client.transport import Transport
from strandline.engine import decoders
from strandline.progress import Readiness
from strandline.room import Closable, Rooms, room


class Remote(Rooms[Closable]):
    """The rooms of a server. A method marked with `room` registers the HTTP client of a room."""

    def __init__(self, transport: Transport, *, retry_unknown: bool) -> None:
        decoders.prepare_types()
        self._transport = transport
        self._retry_unknown = retry_unknown
        super().__init__()

    @room
    def log(self) -> HttpLog:
        return HttpLog(self._transport, retry_unknown=self._retry_unknown)

    @room
    def archive(self) -> HttpArchive:
        return HttpArchive(self._transport)

    @room
    def schedules(self) -> HttpSchedules:
        return HttpSchedules(self._transport)

    @room
    def journals(self) -> HttpJournals:
        return HttpJournals(self._transport)

    @room
    def feeds(self) -> HttpFeeds:
        return HttpFeeds(self._transport)

    def journal(self, topic: str) -> HttpJournal:
        return self.journals.of(topic)

    def schedule(self, name: str) -> HttpMessages:
        return self.schedules.of(name)

    @property
    def url(self) -> str:
        return self._transport.url

    def check_ready(self) -> Readiness:
        """Raise Unavailable unless the server accepts requests. Returns what the jobs beside the server do."""
        return self._transport.get("/ready", Readiness)

    def __repr__(self) -> str:
        return f"strandline.connect({self.url!r})"

    def close(self) -> None:
        super().close()
        self._transport.close()


def connect(url: str, *, timeout: float = 60.0, retry_unknown: bool = False) -> Remote:
    """The rooms of the server at `url`. No request is sent yet.

    `timeout` is in seconds and limits every wait for the server. A publish whose response was lost raises
    `OutcomeUnknown`; with `retry_unknown` it is retried, and its events may be stored more than once.
    """
    return Remote(Transport(url, timeout), retry_unknown=retry_unknown)
