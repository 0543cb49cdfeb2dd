"""`strandline.open`: all rooms in this process, over one data directory."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from strandline import config
from strandline.archive.local import LocalArchive
from strandline.clock import Clock, system_clock
from strandline.config import Settings
from strandline.coordination.connect import connect
from strandline.engine import structs
from strandline.log.catalog.connect import connect as connect_catalog
from strandline.log.local import LocalLog
from strandline.log.node import Node
from strandline.log.storages import Storages
from strandline.log.subscriptions.connect import connect as connect_subscriptions
from strandline.log.subscriptions.local import LocalSubscriptions


class Platform:
    """The rooms, opened. Use it as a context manager or close it."""

    def __init__(self, data: Path, settings: Settings, clock: Clock) -> None:
        structs.prepare_for_threads()
        self.data = data
        self.settings = settings
        self.clock = clock
        catalog = connect_catalog(settings, data, clock)
        storages = Storages(catalog.storages.list, data, settings.log)
        node = Node(lambda: connect(settings.coordination, data), catalog, storages, settings.log, clock)
        self.log = LocalLog(catalog, storages, node, settings.log, clock)
        store = connect_subscriptions(settings, data)
        self.log.subscriptions = LocalSubscriptions(store, self.log, settings, clock)
        self.archive = LocalArchive(self.log, data, settings, clock)

    def close(self) -> None:
        self.archive.close()
        self.log.subscriptions.close()
        self.log.close()

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
    return Platform(data, settings or config.load(file), system_clock())
