"""The options of `format("strandline")`: what they mean, and how mistakes are reported."""

import os
import pickle
from pathlib import Path

import pytest

from strandline.errors import Invalid, NotFound
from strandline.pipeline.options import Home, ReadOptions, WriteOptions

ORDERS = {"data": ".", "event_types": "orders"}


def test_options_of_a_stream():
    """Names of options are not case-sensitive, as everywhere in Spark."""
    found = ReadOptions.of_stream(
        {"Data": ".", "EVENT_TYPES": "orders, returns,orders", "max_records_per_batch": "10", "starting": "END"}
    )
    assert found.event_types == ("orders", "returns")
    assert (found.start, found.max_records, found.on_unavailable) == ("END", 10, "fail")
    assert found.home.data == Path().absolute()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "."}, "event_types is missing"),
        ({**ORDERS, "event_types": "orders,,"}, "event_types is missing"),
        ({**ORDERS, "max_records_per_batch": "0"}, "at least 1"),
        ({**ORDERS, "max_records_per_batch": "many"}, "at least 1"),
        ({**ORDERS, "on_unavailable": "skip"}, "fail, earliest or latest"),
        ({**ORDERS, "event_type": "x"}, "'event_type' is not an option; did you mean 'event_types'"),
        ({**ORDERS, "from": "BEGIN"}, "'from' is an option of batch reads only"),
    ],
)
def test_a_mistake_in_the_options_is_told(options, message):
    """The error comes before anything is opened and says what to write instead."""
    with pytest.raises(Invalid, match=message):
        ReadOptions.of_stream(options)


def test_an_option_of_streams_is_none_of_batches():
    """An option that would have no effect is refused."""
    with pytest.raises(Invalid, match="streams only"):
        ReadOptions.of_batch({**ORDERS, "max_records_per_batch": "10"})


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """An empty current directory, without Strandline's variables in the environment."""
    for name in [name for name in os.environ if name.startswith("STRANDLINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_home_comes_from_the_environment_unless_it_is_named(monkeypatch, folder):
    """`data` and `config` win over STRANDLINE_DATA and STRANDLINE_CONFIG; the default is ./data."""
    for name in ("data", "elsewhere", "here"):
        (folder / name).mkdir()
    (folder / "prod.toml").write_text("[log]\nmax_event_bytes = 12345\n")
    written = {"log.max_event_bytes": 12345}
    assert Home.of({}) == Home(folder / "data", {})
    monkeypatch.setenv("STRANDLINE_CONFIG", str(folder / "prod.toml"))
    assert Home.of({}) == Home(folder, written)
    monkeypatch.setenv("STRANDLINE_DATA", str(folder / "elsewhere"))
    assert Home.of({}) == Home(folder / "elsewhere", written)
    assert Home.of({"data": "here"}) == Home(folder / "here", {})


def test_settings_travel_as_they_were_written(monkeypatch, folder):
    """A worker reads the variables that settings refer to. The driver's values are not sent."""
    (folder / "strandline.toml").write_text(
        '[catalog]\nurl = "env:CATALOG"\n[coordination]\nurl = "zookeeper://z"\n'
    )
    monkeypatch.setenv("CATALOG", "postgresql://secret@db/strandline")
    home = Home.of({"config": str(folder / "strandline.toml")})
    assert not home.of_one_machine
    assert b"secret" not in pickle.dumps(home)
    assert pickle.loads(pickle.dumps(home)) == home


def test_a_settings_file_in_the_data_directory_counts(tmp_path):
    """The file is read as in every other way to open the directory."""
    (tmp_path / "strandline.toml").write_text("[log]\nmax_event_bytes = 12345\n")
    with Home.of({"data": str(tmp_path)}).open() as platform:
        assert platform.settings.log.max_event_bytes == 12345


def test_a_missing_directory_is_not_made(tmp_path):
    """With a typo in the path, a query would read an empty log forever."""
    with pytest.raises(NotFound, match="no data directory"):
        Home.of({"data": str(tmp_path / "dta")})
    assert not (tmp_path / "dta").exists()


def test_options_of_a_sink():
    """Options that Spark adds are ignored."""
    found = WriteOptions.of({"data": ".", "event_type": "orders", "checkpointLocation": "/tmp/c"})  # noqa: S108 - a name
    assert (found.event_type, found.add_eid, found.write_id) == ("orders", True, None)
    assert WriteOptions.of({"data": ".", "event_type": "orders", "add_eid": "False"}).add_eid is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "event_type is missing"),
        ({"event_type": "orders", "add_eid": "maybe"}, "true or false"),
        ({"event_types": "orders"}, "did you mean 'event_type'"),
        ({"event_type": "orders", "starting": "END"}, "streams only"),
    ],
)
def test_a_mistake_in_the_options_of_a_sink_is_told(options, message):
    """The error comes before a task begins to publish."""
    with pytest.raises(Invalid, match=message):
        WriteOptions.of({"data": ".", **options})
