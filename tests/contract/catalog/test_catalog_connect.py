"""The catalog that the settings open, and the combinations of settings that are refused at start."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

import pytest

from services import free_port, run_cli
from services.postgres import PostgresServer
from strandline.clock import ManualClock
from strandline.coordination.settings import CoordinationSettings
from strandline.engine.connect import Databases
from strandline.errors import Conflict, Invalid
from strandline.log.catalog.connect import connect
from strandline.log.model import EventType, StorageInfo
from strandline.log.settings import CatalogSettings
from strandline.log.storage.registry import SqliteConfiguration
from strandline.platform import Platform
from strandline.settings import Settings

ZOOKEEPER = CoordinationSettings("zookeeper://127.0.0.1:1")  # not contacted before the first publish


def shared(url: str) -> Settings:
    return Settings(catalog=CatalogSettings(url), coordination=ZOOKEEPER)


def test_without_a_url_it_is_a_file_in_the_data_directory(tmp_path):
    """The catalog is a file by default and has a default storage, so a node starts without other services."""
    with closing(Databases(tmp_path / "data")) as databases:
        catalog = connect(Settings(), databases, ManualClock())
        assert [storage.id for storage in catalog.storages.list()] == ["default"]
    assert (tmp_path / "data" / "catalog.db").exists()


def test_a_url_leads_to_postgresql(tmp_path, postgres: PostgresServer):
    """A catalog in PostgreSQL starts without a storage and writes nothing to the data directory."""
    name = postgres.new_database()
    with closing(Databases(tmp_path)) as databases:
        assert connect(shared(postgres.url(name)), databases, ManualClock()).storages.list() == []
    assert postgres.execute("SELECT room FROM strandline.layouts", name) == [("catalog",)]
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Settings(catalog=CatalogSettings("postgresql://me@host/db")), "coordination.url is empty"),
        (Settings(coordination=ZOOKEEPER), "catalog.url is empty"),
        (shared("mysql://me@host/db"), "must look like postgresql://"),
        (shared("catalog.db"), "must look like postgresql://"),
    ],
)
def test_other_combinations_are_refused(tmp_path, settings, says):
    """The error names the setting, and nothing is created before it."""
    with pytest.raises(Invalid, match=says):
        connect(settings, Databases(tmp_path / "data"), ManualClock())
    assert not (tmp_path / "data").exists()


def test_a_node_does_not_start_with_them(tmp_path):
    """`serve` prints the error and exits with a non-zero code."""
    done = run_cli(
        *("serve", "--data", str(tmp_path), "--port", str(free_port())),
        *("--catalog-url", "postgresql://me@127.0.0.1:1/db"),
    )
    assert done.returncode != 0
    assert b"coordination.url is empty" in done.stderr


def test_before_there_is_a_storage_no_event_type_can_be_made(tmp_path, postgres: PostgresServer):
    """The error says what to do; a storage on one machine is refused as well."""
    with Platform(tmp_path, shared(postgres.url(postgres.new_database())), ManualClock()) as platform:
        with pytest.raises(Conflict, match="POST /storages"):
            platform.log.create(EventType("a"))
        with pytest.raises(Invalid, match="use kafka"):
            platform.log.admin.add_storage(
                StorageInfo("s", "sqlite", sqlite_configuration=SqliteConfiguration("s"))
            )
        assert platform.log.event_types() == []


def test_the_embedded_form_needs_no_driver(tmp_path):
    """The PostgreSQL driver is an optional extra."""
    code = (
        "import sys; sys.modules['psycopg'] = None; import strandline;"
        "strandline.open(sys.argv[1]).close(); assert 'strandline.engine.postgres' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
