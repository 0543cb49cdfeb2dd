"""`strandline.open`: all rooms in this process, over one data directory."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from strandline.archive.local import LocalArchive
from strandline.clock import Clock, system_clock
from strandline.engine import decoders
from strandline.engine.databases import Databases
from strandline.log.open import open_log
from strandline.settings import Settings


class Platform:
    """The rooms, opened. Use it as a context manager or close it."""

    def __init__(self, data: Path, settings: Settings, clock: Clock) -> None:
        decoders.prepare_types()
        self.data = data
        self.settings = settings
        self.clock = clock
        self.databases = Databases(data)
        try:
            self.log = open_log(data, self.databases, settings, clock)
            self.archive = LocalArchive(self.log, self.databases, data, settings, clock)
        except BaseException:
            self.databases.close()
            raise

    def close(self) -> None:
        self.archive.close()
        self.log.close()
        self.databases.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open(path: str | Path = "data", *, settings: Settings | None = None) -> Platform:  # noqa: A001
    """Open a data directory, made if missing, or the one that a `.toml` settings file lies in.

    Several processes may have the same directory open.
    """
    data = Path(path)
    file: Path | None = None
    if data.suffix == ".toml":
        data, file = data.parent, data
    elif (data / "strandline.toml").exists():
        file = data / "strandline.toml"
    return Platform(data, settings or Settings.load(file), system_clock())
