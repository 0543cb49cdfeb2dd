"""What `doctor` and the dry run of a switch say about storages and files that are gone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import strandline
from services import Server, free_port
from strandline import EventType
from strandline.cli import cli, failures
from strandline.errors import Conflict, Unavailable
from strandline.log.model import StorageInfo
from strandline.log.storage import kafka_topics
from strandline.log.storage.kafka import KafkaStorage
from strandline.log.storage.registry import KafkaConfiguration, SqliteConfiguration


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_topics, "_CHECK_SECONDS", 0.2)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with an event type, and a storage on brokers that do not answer."""
    with strandline.open(tmp_path / "data") as platform:
        platform.log.create(EventType("orders"))
        platform.log.publish("orders", [{"n": 1}]).raise_for_failed()
        nobody = KafkaConfiguration(f"127.0.0.1:{free_port()}")
        platform.log.admin.add_storage(StorageInfo("nobody", "kafka", kafka_configuration=nobody))
    return tmp_path / "data"


def failed(data: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The failed checks of `doctor` with their details."""
    failures.guarded(cli, ["doctor", "--data", str(data), "--json"])
    return {one["name"]: one["detail"] for one in json.loads(capsys.readouterr().out) if one["status"] == "fail"}


def test_doctor_asks_every_storage(data, capsys):
    """A Kafka cluster that does not answer is a failed check, although no event type is stored on it."""
    found = failed(data, capsys)
    assert [*found] == ["storage nobody"]
    assert "the brokers do not answer" in found["storage nobody"]


def test_doctor_looks_for_the_topics(data, capsys):
    """Deleted topic files are found, and the event type is named."""
    for file in (data / "topics").iterdir():
        file.unlink()
    assert "the events of orders cannot be read" in failed(data, capsys)["records"]


@pytest.mark.parametrize("content", [os.urandom(20_000), None])
def test_doctor_opens_the_catalog(data, capsys, content):
    """A catalog that is no database, and one that is missing beside topics, are failed checks."""
    for file in data.glob("catalog.db*"):
        file.unlink()
    if content is not None:
        (data / "catalog.db").write_bytes(content)
    assert [*failed(data, capsys)] == ["catalog"]
    assert (data / "catalog.db").exists() is (content is not None)


@pytest.mark.parametrize("database", ["coordination", "journal", "schedule", "feeds"])
def test_doctor_opens_every_database(data, capsys, database):
    """Each room has its own, and some are opened only when they are used."""
    with strandline.open(data) as platform:
        platform.log.admin.remove_storage("nobody")
    for file in data.glob(f"{database}.db-*"):
        file.unlink()
    (data / f"{database}.db").write_bytes(os.urandom(20_000))
    found = failed(data, capsys)
    assert [*found] == [database]
    assert f"{database}.db cannot be used" in found[database]
    assert "restore a backup" in found[database]


def test_doctor_asks_the_storages_of_a_server(data, capsys):
    """Also a storage that no event type uses, and the event types after the first of a storage."""
    with strandline.open(data) as platform:
        for name in ("attic", "empty"):
            place = SqliteConfiguration(name)
            platform.log.admin.add_storage(StorageInfo(name, "sqlite", sqlite_configuration=place))
        platform.log.create(EventType("logins"))
        platform.log.admin.switch("logins", "attic")
        platform.log.create(EventType("visits"))
        (lost,) = (data / "topics").glob(f"{platform.log.timelines('visits')[0].topic}.db")
    lost.unlink()
    with Server(data) as server:
        failures.guarded(cli, ["doctor", "--url", server.url, "--json"])
    states = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert "brokers do not answer" in states["storage nobody"]["detail"]
    assert "visits cannot be read" in states["storage default"]["detail"]
    found = {name: states[f"storage {name}"]["status"] for name in ("attic", "default", "empty", "nobody")}
    assert found == {"attic": "ok", "default": "fail", "empty": "ok", "nobody": "fail"}


def test_a_switch_to_dead_brokers_says_what_to_do(data, monkeypatch):
    """The switch itself fails like its dry run, and is undone."""
    monkeypatch.setattr(kafka_topics.Topics._brokers, "__defaults__", (0.2,))
    with strandline.open(data) as platform:
        with pytest.raises(Unavailable, match="the brokers do not answer; start them"):
            platform.log.admin.switch("orders", "nobody")
        assert platform.log.admin.current_switch("orders").state == "aborted"


@pytest.mark.parametrize("stays_dead", [True, False])
def test_a_storage_that_never_answered_can_be_removed(data, monkeypatch, stays_dead):
    """A switch to it has created nothing. If it fails later, the topic is deleted first."""
    monkeypatch.setattr(kafka_topics.Topics._brokers, "__defaults__", (0.2,))
    with strandline.open(data) as platform:
        if not stays_dead:
            monkeypatch.setattr(KafkaStorage, "check_ready", lambda _: None)
        with pytest.raises(Unavailable, match="the brokers do not answer"):
            platform.log.admin.switch("orders", "nobody")
        if stays_dead:
            platform.log.admin.remove_storage("nobody")
            return
        with pytest.raises(Conflict, match="is in use"):
            platform.log.admin.remove_storage("nobody")


def test_a_dry_run_asks_both_storages(data):
    """A switch to brokers that do not answer, or from a directory that is gone, is not called possible."""
    with strandline.open(data) as platform:
        other = StorageInfo("other", "sqlite", sqlite_configuration=SqliteConfiguration("other"))
        platform.log.admin.add_storage(other)
        platform.log.admin.check_switch("orders", "other")
        with pytest.raises(Unavailable, match="storage 'nobody' cannot be used: the brokers do not answer"):
            platform.log.admin.check_switch("orders", "nobody")
        (data / "topics").rename(data / "elsewhere")
        with pytest.raises(Unavailable, match="storage 'default' cannot be used"):
            platform.log.admin.check_switch("orders", "other")
