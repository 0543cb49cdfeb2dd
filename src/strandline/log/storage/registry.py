"""The types of storage: how each one is configured, opened and named.

A new storage type needs its adapter and, in this module, a configuration class, a name in `StorageTypeName` and
`STORAGE_TYPES`, and a field in `StorageConfigurations`. All other modules ask the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

import msgspec

from strandline.errors import Invalid
from strandline.log.settings import LogSettings
from strandline.log.storage.port import Storage


class StorageConfiguration(msgspec.Struct, frozen=True):
    """The location of a storage, in the first field, and how to open it. The base of all configurations."""

    #: Whether only the processes of one machine can use it.
    local: ClassVar[bool]
    #: The form of the location and its explanation, for the command line.
    location_format: ClassVar[str]
    location_help: ClassVar[str]

    @classmethod
    def parse(cls, location: str, properties: Mapping[str, str]) -> Self:
        """The configuration from a location and properties; Invalid if the type takes no properties."""
        if not properties:
            return cls(location)
        if "properties" not in cls.__struct_fields__:
            raise Invalid("this type of storage takes no properties")
        return cls(location, properties=dict(properties))

    @property
    def location(self) -> str:
        return str(getattr(self, self.__struct_fields__[0]))

    def check(self) -> None:
        """Raise Invalid if no storage can be opened with this configuration."""

    def open(self, data: Path, settings: LogSettings) -> Storage:
        """Open the storage. `data` is the data directory of this process."""
        raise NotImplementedError


class SqliteConfiguration(StorageConfiguration, frozen=True):
    """A directory with one SQLite file per topic."""

    directory: str

    local = True
    location_format = "DIR"
    location_help = "Directory for SQLite files, below the data directory."

    def check(self) -> None:
        if not self.directory or ".." in Path(self.directory).parts:
            raise Invalid(f"{self.directory!r} is not a directory; write a path, relative to the data directory")

    def open(self, data: Path, settings: LogSettings) -> Storage:
        from strandline.log.storage.sqlite import SqliteStorage  # noqa: PLC0415 - clients need no driver

        return SqliteStorage(
            data / self.directory,
            poll_interval_ms=settings.poll_interval_ms,
            max_open_topics=settings.max_open_topics,
        )


class KafkaConfiguration(StorageConfiguration, frozen=True):
    """A Kafka cluster. The properties are those of the driver and of new topics."""

    bootstrap_servers: str
    properties: dict[str, str] = {}

    local = False
    location_format = "HOST:PORT,…"
    location_help = "Bootstrap servers of a Kafka cluster."

    def open(self, data: Path, settings: LogSettings) -> Storage:  # noqa: ARG002 - it is not in the data directory
        from strandline.log.storage.kafka import KafkaOptions, KafkaStorage  # noqa: PLC0415 - its driver is an extra

        options = KafkaOptions(
            max_event_bytes=settings.max_event_bytes,
            poll_interval_ms=settings.poll_interval_ms,
            max_open_reads=settings.max_open_reads,
        )
        return KafkaStorage(self.bootstrap_servers, self.properties, options)


StorageTypeName = Literal["sqlite", "kafka"]
STORAGE_TYPES: dict[str, type[StorageConfiguration]] = {
    "kafka": KafkaConfiguration,
    "sqlite": SqliteConfiguration,
}
#: The types that several machines can share, for error messages.
SHARED_TYPES = " or ".join(name for name, kind in STORAGE_TYPES.items() if not kind.local)


class StorageConfigurations(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One field per storage type, named `<type>_configuration`."""

    kafka_configuration: KafkaConfiguration | None = None
    sqlite_configuration: SqliteConfiguration | None = None
