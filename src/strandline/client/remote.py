"""`strandline.connect`: all rooms of a server, over HTTP."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from strandline.client.archive import HttpArchive
from strandline.client.log import HttpLog
from strandline.client.transport import Transport
from strandline.engine import values


class Remote:
    """The rooms of a server. Use it as a context manager or close it."""

    def __init__(self, transport: Transport, *, retry_unknown: bool) -> None:
        values.prepare()
        self._transport = transport
        self.log = HttpLog(transport, retry_unknown=retry_unknown)
        self.archive = HttpArchive(transport)

    @property
    def url(self) -> str:
        return self._transport.url

    def check_ready(self) -> None:
        """Return when the server takes requests; Unavailable otherwise."""
        self._transport.get("/ready")

    def close(self) -> None:
        self.archive.close()
        self.log.close()
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(url: str, *, token: str | None = None, timeout: float = 60.0, retry_unknown: bool = False) -> Remote:
    """The rooms of the server at `url`; nothing is sent yet.

    `timeout` is in seconds and bounds every wait for the server. A publish whose answer was lost raises
    `OutcomeUnknown`; with `retry_unknown` it is sent again, so that its events may be stored twice.
    """
    return Remote(Transport(url, token, timeout), retry_unknown=retry_unknown)
