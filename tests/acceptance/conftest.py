"""Nodes that tests share: one for all tests of bad requests, and one per file of CLI tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from requests_as_is import DEFINITIONS, MAX_BODY, MAX_EVENT, contents, send
from services import Server


def _move(server: Server) -> None:
    """Put three events of `moved` into a timeline, close it, and put one event into the next timeline."""
    place = {"id": "second", "storage_type": "sqlite", "sqlite_configuration": {"directory": "second"}}
    assert send(server, "POST", "/event-types/moved/events", [{"n": n} for n in range(3)]).status == 200
    assert send(server, "POST", "/storages", place).status == 201
    assert send(server, "POST", "/event-types/moved/timelines", {"storage_id": "second"}).status == 201
    assert send(server, "POST", "/event-types/moved/events", [{"n": 3}]).status == 200


@pytest.fixture(scope="package")
def target(tmp_path_factory) -> Iterator[Server]:
    limits = {"server_max_body_bytes": MAX_BODY, "log_max_event_bytes": MAX_EVENT, "log_max_batch_events": 100}
    with Server(tmp_path_factory.mktemp("bad-input") / "data", **limits) as started:
        for name, definition in DEFINITIONS.items():
            assert send(started, "POST", "/event-types", {"name": name, **definition}).status == 201
        events = [{"n": n, "metadata": {"partition": str(n % 2)}} for n in range(5)]
        assert send(started, "POST", "/event-types/placed/events", events).status == 200
        _move(started)
        before = contents(started)
        yield started
        # The refused requests changed no data and logged no error.
        assert contents(started) == before
        assert '"level": "error"' not in started.log_file.read_text()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory that a server and the commands of a test open at the same time."""
    return tmp_path_factory.mktemp("cli") / "data"


@pytest.fixture(scope="module")
def url(data: Path) -> Iterator[str]:
    with Server(data, logs_level="warning") as server:
        yield server.url


@pytest.fixture(params=["data", "url"])
def place(request: pytest.FixtureRequest, data: Path, url: str) -> list[str]:
    """The option that makes a command work in process or over HTTP."""
    return ["--data", str(data)] if request.param == "data" else ["--url", url]
