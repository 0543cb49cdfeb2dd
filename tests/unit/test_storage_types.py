"""A storage type is one adapter and its entry in the registry; no other module knows the types."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from strandline.errors import Invalid, Unavailable
from strandline.log.admin import LocalAdmin
from strandline.log.model import StorageInfo
from strandline.log.open_storages import Storages
from strandline.log.ranges import PartitionRange, Piece
from strandline.log.settings import LogSettings
from strandline.log.storage import registry
from strandline.log.storage.registry import KafkaConfiguration, SqliteConfiguration, StorageConfiguration

SOURCE = Path(registry.__file__).parents[2]
# The adapters, the registry, and the choice of the first storage of an embedded catalog.
ALLOWED = {"log/storage/registry.py", "log/storage/kafka.py", "log/storage/sqlite.py", "log/catalog/connect.py"}
KNOWS_A_TYPE = re.compile(
    r"\b(?:kafka|sqlite)_configuration\b|\b(?:Kafka|Sqlite)(?:Configuration|Storage)\b|storage_type (?:==|in|is)"
)


class TapeStorage:
    """The storage of the fake type below."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.closed = False

    def tidy(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class TapeConfiguration(StorageConfiguration, frozen=True):
    reel: str

    local = True
    location_format = "REEL"
    location_help = "Number of the reel."

    def check(self, data: Path, settings: LogSettings) -> None:  # noqa: ARG002 - all types are asked alike
        if not self.reel.isdigit():
            raise Invalid(f"{self.reel!r} is not the number of a reel")

    def open(self, data: Path, settings: LogSettings) -> Any:  # noqa: ARG002 - all types have the same arguments
        return TapeStorage(data / self.reel)


class TapeInfo(StorageInfo, frozen=True):
    """As if the registry contained the fake type."""

    tape_configuration: TapeConfiguration | None = None


def tape(reel: str) -> TapeInfo:
    return TapeInfo("attic", "tape", tape_configuration=TapeConfiguration(reel))  # type: ignore[arg-type]


def test_the_registry_agrees_with_itself():
    """Every type has a name, a class and a field."""
    names = {*get_args(registry.StorageTypeName)}
    fields = {field.name: field.type for field in msgspec.structs.fields(registry.StorageConfigurations)}
    assert names == {*registry.STORAGE_TYPES}
    assert fields == {f"{name}_configuration": kind | None for name, kind in registry.STORAGE_TYPES.items()}


def test_no_other_module_knows_the_types():
    """A new type needs no change in any other module."""
    found = [path for path in SOURCE.rglob("*.py") if KNOWS_A_TYPE.search(path.read_text("utf-8"))]
    assert {path.relative_to(SOURCE).as_posix() for path in found} == ALLOWED


def test_a_new_type_is_opened_and_closed(tmp_path):
    """The configuration alone opens the storage. A changed configuration reopens it."""
    listed = [tape("7")]
    storages = Storages(lambda: listed, tmp_path, LogSettings())
    opened = storages.get("attic")
    assert isinstance(opened, TapeStorage)
    assert opened.path == tmp_path / "7"
    storages.tidy()
    assert storages.get("attic") is opened
    listed[:] = [tape("8")]
    storages.tidy()
    assert opened.closed
    assert storages.get("attic").path == tmp_path / "8"


def test_a_new_type_is_checked_when_it_is_added(tmp_path):
    """The configuration checks itself."""
    storages = Storages(list, tmp_path, LogSettings())
    admin = LocalAdmin(None, None, storages, None, None)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="'seven' is not the number"):
        admin.add_storage(tape("seven"))


@pytest.mark.parametrize("directory", ["", "x\0y", "a\nb", "\ud800", "../x", "a/../b", "d" * 201, "é" * 101])
def test_a_directory_that_no_file_can_be_in_is_refused(directory):
    """The error comes when the storage is added, not when an event type switches to it."""
    with pytest.raises(Invalid, match="is not a directory"):
        SqliteConfiguration(directory).check(Path("data"), LogSettings())


@pytest.mark.parametrize("directory", ["topics", "a/b c", "données", "d" * 200])
def test_a_directory_that_can_be_made_is_accepted(directory):
    """A path of printable characters is accepted."""
    SqliteConfiguration(directory).check(Path("data"), LogSettings())


@pytest.mark.parametrize(
    "servers",
    [
        "",
        ",",
        "b1:9092,",
        "b1:9092,,b2",
        "b\0:9092",
        "b 1:9092",
        "b1:",
        "b1:0",
        "b1:65536",
        "b1:x",
        "b1:٣",
        "::1:9092",
    ],
)
def test_bootstrap_servers_that_nobody_can_reach_are_refused(servers):
    """The error comes when the storage is added, not after a connection timeout."""
    with pytest.raises(Invalid, match="is not a bootstrap server"):
        KafkaConfiguration(servers).check(Path("data"), LogSettings())


@pytest.mark.parametrize("servers", ["b1", "b-1.example:9092, b_2:65535", "127.0.0.1:9092", "[::1]:9092"])
def test_bootstrap_servers_are_names_or_addresses(servers):
    """A port is optional."""
    KafkaConfiguration(servers).check(Path("data"), LogSettings())


def test_a_new_type_says_whether_it_is_local():
    """Spark tasks that read a local storage must not run on other machines."""
    piece = Piece(1, tape("7"), "topic", 0, 9)
    assert PartitionRange("orders", 0, (piece,), "data").of_one_machine


def test_the_form_on_the_wire():
    """A storage has its type and the configuration of that type."""
    text = b'{"id":"k","storage_type":"kafka","kafka_configuration":{"bootstrap_servers":"b:9092"}}'
    info = msgspec.json.decode(text, type=StorageInfo)
    assert info.configuration == KafkaConfiguration("b:9092")
    assert msgspec.json.decode(msgspec.json.encode(info), type=StorageInfo) == info


def test_a_configuration_that_is_missing():
    """A storage needs the configuration of its own type."""
    info = StorageInfo("k", "kafka", sqlite_configuration=SqliteConfiguration("topics"))
    with pytest.raises(Invalid, match="a storage of type kafka needs kafka_configuration"):
        _ = info.configuration


@pytest.mark.parametrize(("name", "location"), [("kafka", "b1:9092,b2:9092"), ("sqlite", "topics")])
def test_a_location_on_the_command_line(name, location):
    """A location is shown as it was given."""
    assert registry.STORAGE_TYPES[name].parse(location, {}).location == location


def test_properties_where_there_are_none():
    """Properties of a type that takes none are refused, not ignored."""
    with pytest.raises(Invalid, match="takes no properties"):
        SqliteConfiguration.parse("topics", {"acks": "all"})


@pytest.fixture
def data(tmp_path) -> Path:
    """A data directory with symbolic links into it, out of it, and to itself."""
    data = tmp_path / "data"
    for folder in (data / "topics", tmp_path / "outside", tmp_path / "data2", tmp_path / "disk" / "events"):
        folder.mkdir(parents=True)
    for name, place in {"in": data / "topics", "out": tmp_path / "outside", "loop": data / "loop"}.items():
        (data / name).symlink_to(place)
    return data


@pytest.mark.parametrize("directory", ["catalog.db", "catalog.db/deep", "topics/../catalog.db", "linked"])
def test_files_are_no_directories(data, directory):
    """A file, and what cannot be made because a file is in the way, are refused when the storage is added."""
    (data / "catalog.db").touch()
    (data / "linked").symlink_to(data / "catalog.db")
    with pytest.raises(Invalid, match=r"is a file|is not a directory"):
        SqliteConfiguration(directory).check(data, LogSettings())


@pytest.mark.parametrize("directory", ["topics", "new/deep", "./topics", "in", "in/deep", "..topics", "a..b"])
def test_directories_in_the_data_directory(data, directory):
    """A directory in the data directory is accepted. It need not exist, and may be a link that stays inside."""
    SqliteConfiguration(directory).check(data, LogSettings())
    SqliteConfiguration(str(data / directory)).check(data, LogSettings())


@pytest.mark.parametrize(
    "directory",
    [
        "",
        "..",
        "../data2",
        "topics/../../outside",
        "/",
        "/etc",
        "out",
        "out/deep",
        "loop",
        "a\0b",
        "{}2",
        "{}/../x",
    ],
)
def test_directories_elsewhere_are_refused(data, directory):
    """A directory outside is refused, by `check` and by `open`, however its path leads there."""
    configuration = SqliteConfiguration(directory.replace("{}", str(data)))
    with pytest.raises(Invalid, match="directory"):
        configuration.check(data, LogSettings())
    with pytest.raises(Invalid, match="directory"):
        configuration.open(data, LogSettings())


def test_the_operator_can_allow_other_directories(data, tmp_path):
    """The setting allows directories and everything below them."""
    settings = LogSettings(storage_directories=f"{tmp_path}/disk , {tmp_path}/outside")
    for directory in (tmp_path / "disk", tmp_path / "disk/events", tmp_path / "outside/deep", data / "out"):
        SqliteConfiguration(str(directory)).check(data, settings)
    for directory in (tmp_path / "disk2", tmp_path / "data2", tmp_path):
        with pytest.raises(Invalid, match=r"log\.storage_directories"):
            SqliteConfiguration(str(directory)).check(data, settings)


def test_a_storage_that_may_not_be_opened_is_unavailable(data):
    """A storage that the settings do not allow is unavailable. The error names the setting."""
    listed = [StorageInfo("old", "sqlite", sqlite_configuration=SqliteConfiguration("/somewhere/else"))]
    with pytest.raises(Unavailable, match=r"storage 'old' cannot be opened: .*log\.storage_directories"):
        Storages(lambda: listed, data, LogSettings()).get("old")
