"""The types of storage: how each one is configured, opened and named.

A new storage type needs its adapter and, in this module, a configuration class, a name in `StorageTypeName` and
`STORAGE_TYPES`, and a field in `StorageConfigurations`. All other modules ask the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

import msgspec

from strandline.errors import Invalid
from strandline.log.settings import LogSettings
from strandline.log.storage.port import Storage

# The path of a topic adds up to 170 bytes and the data directory; SQLite opens paths of up to 512 bytes.
_PATH_BYTES = 200
# A name, an IPv4 address, or an IPv6 address in brackets; the driver's default port if there is none.
_SERVER = re.compile(r"(?:[\w.-]+|\[[\da-fA-F:.]+\])(?::(\d{1,5}))?", re.ASCII).fullmatch
_PORTS = range(1, 1 << 16)


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

    def check(self, data: Path, settings: LogSettings) -> None:
        """Raise Invalid if this node must not open a storage with this configuration."""

    def open(self, data: Path, settings: LogSettings) -> Storage:
        """Open the storage, or raise Invalid like `check`. `data` is the data directory of this process."""
        raise NotImplementedError


class SqliteConfiguration(StorageConfiguration, frozen=True):
    """A directory with one SQLite file per topic."""

    directory: str

    local = True
    location_format = "DIR"
    location_help = "Directory for SQLite files, in the data directory."

    def check(self, data: Path, settings: LogSettings) -> None:
        path = self.directory
        if not path.isprintable() or not 0 < len(path.encode()) <= _PATH_BYTES or ".." in Path(path).parts:
            raise Invalid(
                f"{path!r:.100} is not a directory; write a path, relative to the data directory, of printable "
                f"characters and at most {_PATH_BYTES} bytes"
            )
        allowed = [data, *(Path(part.strip()) for part in settings.storage_directories.split(",") if part.strip())]
        # Symbolic links may lead out of the data directory.
        place = _resolved(data / path)
        if not any(place.is_relative_to(_resolved(directory)) for directory in allowed):
            raise Invalid(
                f"{path!r} is outside of the data directory; use a path in it, or allow this one with "
                "the setting log.storage_directories of the node"
            )
        if any(part.is_file() for part in (place, *place.parents)):
            raise Invalid(f"{path!r} is a file, or in one; write the path of a directory")

    def open(self, data: Path, settings: LogSettings) -> Storage:
        from strandline.log.storage.sqlite import SqliteStorage  # noqa: PLC0415 - clients need no driver

        self.check(data, settings)
        return SqliteStorage(
            data / self.directory,
            poll_interval_ms=settings.poll_interval_ms,
            max_open_topics=settings.max_open_topics,
        )


class KafkaConfiguration(StorageConfiguration, frozen=True):
    """A Kafka cluster. The properties are those of the driver and of new topics, see `kafka_properties`."""

    bootstrap_servers: str
    properties: dict[str, str] = {}

    local = False
    location_format = "HOST:PORT,…"
    location_help = "Bootstrap servers of a Kafka cluster."

    def check(self, data: Path, settings: LogSettings) -> None:  # noqa: ARG002 - it is not in the data directory
        for server in self.bootstrap_servers.split(","):
            match = _SERVER(server.strip())
            if not match or int(match[1] or 1) not in _PORTS:
                raise Invalid(f"{server!r:.100} is not a bootstrap server; write host:port, separated by commas")
        from strandline.log.storage.kafka import KafkaOptions, check_properties  # noqa: PLC0415 - its driver is an extra

        check_properties(self.bootstrap_servers, self.properties, KafkaOptions.of(settings))

    def open(self, data: Path, settings: LogSettings) -> Storage:  # noqa: ARG002 - it is not in the data directory
        from strandline.log.storage.kafka import KafkaOptions, KafkaStorage  # noqa: PLC0415 - its driver is an extra

        return KafkaStorage(self.bootstrap_servers, self.properties, KafkaOptions.of(settings))


def _resolved(directory: Path) -> Path:
    try:
        return directory.resolve()
    except (OSError, RuntimeError) as error:  # links that form a loop
        raise Invalid(f"{str(directory)!r} is not a directory: {error}") from error


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
