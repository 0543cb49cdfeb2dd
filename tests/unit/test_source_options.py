"""The options of `format("strandline")`: what they mean, and that a mistake is told."""

from pathlib import Path

import pytest

from strandline.errors import Invalid, NotFound
from strandline.pipeline.options import Home, ReadOptions

ORDERS = {"data": "d", "event_types": "orders"}


def test_options_of_a_stream():
    """Their names are not case-sensitive, as everywhere in Spark."""
    found = ReadOptions.of_stream(
        {"Data": "d", "EVENT_TYPES": "orders, returns,orders", "max_records_per_batch": "10", "starting": "END"}
    )
    assert found.event_types == ("orders", "returns")
    assert (found.start, found.max_records, found.on_unavailable) == ("END", 10, "fail")
    assert found.home == Home(Path("d").absolute())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name what to read"),
        ({"event_types": "orders,,"}, "name what to read"),
        ({**ORDERS, "max_records_per_batch": "0"}, "from 1 on"),
        ({**ORDERS, "max_records_per_batch": "many"}, "from 1 on"),
        ({**ORDERS, "on_unavailable": "skip"}, "fail, earliest or latest"),
        ({**ORDERS, "event_type": "x"}, "'event_type' is not an option; did you mean 'event_types'"),
        ({**ORDERS, "from": "BEGIN"}, "'from' is an option of batch reads only"),
    ],
)
def test_a_mistake_in_the_options_is_told(options, message):
    """Before anything is opened, and with what to write instead."""
    with pytest.raises(Invalid, match=message):
        ReadOptions.of_stream(options)


def test_an_option_of_streams_is_none_of_batches():
    """A limit that would be ignored is refused."""
    with pytest.raises(Invalid, match="streams only"):
        ReadOptions.of_batch({**ORDERS, "max_records_per_batch": "10"})


def test_the_home_comes_from_the_environment_unless_it_is_named(monkeypatch, tmp_path):
    """`data` and `config` win over STRANDLINE_DATA and STRANDLINE_CONFIG; without any it is ./data."""
    monkeypatch.delenv("STRANDLINE_DATA", raising=False)
    monkeypatch.delenv("STRANDLINE_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    assert Home.of({}).data == tmp_path / "data"
    monkeypatch.setenv("STRANDLINE_CONFIG", str(tmp_path / "prod.toml"))
    assert Home.of({}) == Home(tmp_path, tmp_path / "prod.toml")
    monkeypatch.setenv("STRANDLINE_DATA", str(tmp_path / "elsewhere"))
    assert Home.of({}) == Home(tmp_path / "elsewhere", tmp_path / "prod.toml")
    assert Home.of({"data": "here"}) == Home(tmp_path / "here")


def test_a_settings_file_in_the_data_directory_counts(tmp_path):
    """As for every other way to open it."""
    (tmp_path / "strandline.toml").write_text("[log]\nmax_event_bytes = 12345\n")
    with Home.of({"data": str(tmp_path)}).open() as platform:
        assert platform.settings.log.max_event_bytes == 12345


def test_a_missing_directory_is_not_made(tmp_path):
    """A typing mistake would read an empty log for ever."""
    with pytest.raises(NotFound, match="no data directory"):
        Home.of({"data": str(tmp_path / "dta")}).open()
    assert not (tmp_path / "dta").exists()
