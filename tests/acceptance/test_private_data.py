"""Tests of file modes: other users of the machine cannot read the data of a node, whatever the umask is."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest

import strandline
from requests_as_is import send
from services import Server, run_cli
from strandline import EventType
from strandline.clock import ManualClock
from strandline.platform import Platform
from strandline.settings import Settings

LATER = 1767272400000  # an hour after the kept data were written
KEPT = Path(__file__).parents[1] / "kept" / "data-0.1.zip"
SECOND = {"id": "second", "storage_type": "sqlite", "sqlite_configuration": {"directory": "deep/second"}}


class GenerousServer(Server):
    """A node with a umask that allows everything."""

    def options(self) -> dict[str, Any]:
        return {**super().options(), "umask": 0}


def open_to_others(folder: Path) -> dict[str, str]:
    """The modes of the directories that are not 700 and of the files that are not 600."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode != (0o700 if path.is_dir() else 0o600):
            found[str(path.relative_to(folder))] = oct(mode)
    return found


def test_a_node_keeps_its_data_private(tmp_path):
    """All files of a node are private: databases with WALs and locks, topics of two storages, the archive."""
    with GenerousServer(tmp_path / "data") as server:
        assert send(server, "POST", "/event-types", {"name": "orders"}).status == 201
        assert send(server, "POST", "/event-types/orders/events", [{"n": 1}]).status == 200
        assert send(server, "POST", "/storages", SECOND).status == 201
        assert send(server, "POST", "/event-types/orders/timelines", {"storage_id": "second"}).status == 201
        assert send(server, "POST", "/event-types/orders/events", [{"n": 2}]).status == 200
        before = os.umask(0)
        try:
            with strandline.open(tmp_path / "data") as opened:
                opened.archive.process().once()
                names = {path.name for path in (tmp_path / "data").rglob("*")}
                assert open_to_others(tmp_path / "data") == {}
        finally:
            os.umask(before)
    assert {"catalog.db", "catalog.db-wal", "catalog.db-shm", "catalog.db.lock", "archive.db", "topics"} <= names
    assert any(name.endswith(".parquet") for name in names)


def test_data_of_an_earlier_release_become_private(tmp_path):
    """Directories and databases of an earlier release get private modes when they are opened."""
    data = tmp_path / "data"
    with zipfile.ZipFile(KEPT) as kept:
        kept.extractall(data)
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    checked = run_cli("doctor", "--data", str(data))
    assert b"chmod 700" in checked.stdout
    with Platform(data, Settings(), ManualClock(LATER)) as opened:
        opened.log.publish("orders", [{"customer": "c", "n": 30}]).raise_for_failed()
        assert sum(len(batch) for batch in opened.log.read("orders")) == 31
        opened.archive.process().once()
    exposed = open_to_others(data)
    assert "." not in exposed
    assert {Path(name).parts[0] for name in exposed} <= {"archive"}
    assert "archive" not in exposed
    assert b"chmod" not in run_cli("doctor", "--data", str(data)).stdout


def test_a_data_directory_of_another_user_is_left_as_it_is(tmp_path, monkeypatch):
    """A data directory whose mode cannot be changed is used as it is."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    (tmp_path / "data").mkdir(mode=0o755)
    monkeypatch.setattr(Path, "chmod", refuse)
    with strandline.open(tmp_path / "data") as opened:
        opened.log.create(EventType("orders"))
        opened.log.publish("orders", [{"n": 1}]).raise_for_failed()


@pytest.mark.parametrize(("mode", "file_mode"), [(0o755, 0o644), (0o750, 0o640), (0o700, 0o600)])
def test_an_archive_elsewhere_has_the_modes_of_its_directory(tmp_path, mode, file_mode):
    """Archived files have the mode of the directory of the archive."""
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive").chmod(mode)
    settings = Settings.load(env={}, flags={"archive.root": str(tmp_path / "archive")})
    with strandline.open(tmp_path / "data", settings=settings) as opened:
        opened.log.create(EventType("orders"))
        opened.log.publish("orders", [{"n": 1}]).raise_for_failed()
        opened.archive.process().once()
    found = [path for path in (tmp_path / "archive").rglob("*") if "_staging" not in path.parts]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {mode}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {file_mode}
