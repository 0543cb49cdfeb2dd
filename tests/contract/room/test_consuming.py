"""`strandline consume` in this process: groups, times and the metadata of events."""

from __future__ import annotations

import json

import pytest

import strandline
from strandline import EventType
from strandline.cli import cli, failures
from strandline.clock import to_rfc3339


@pytest.fixture
def data(tmp_path):
    """A data directory with six events in two partitions, published by three calls."""
    with strandline.open(tmp_path / "data") as platform:
        keyed = {"partition_strategy": "hash", "partition_key_fields": ("id",)}
        platform.log.create(EventType("orders", partitions=2, **keyed))
        for first in (0, 2, 4):
            events = [{"id": str(n)} for n in range(first, first + 2)]
            platform.log.publish("orders", events).raise_for_failed()
    return tmp_path / "data"


@pytest.fixture
def consume(data, capfdbinary):
    """The printed lines of a `consume`."""

    def run(*options: str, code: int = 0) -> list:
        assert failures.guarded(cli, ["consume", "orders", *options, "--data", str(data)]) == code
        out, err = capfdbinary.readouterr()
        return [json.loads(line) for line in out.splitlines()] if not code else [err.decode()]

    return run


def ids(lines: list) -> list[str]:
    return sorted(line["id"] for line in lines)


def test_a_group_continues_where_it_stopped(consume):
    """What a group printed is committed: the next call prints the rest, each group has its own cursors."""
    first = consume("--group", "billing", "--limit", "4")
    rest = consume("--group", "billing")
    assert (len(first), ids(first + rest)) == (4, [*"012345"])
    assert consume("--group", "billing") == []
    assert ids(consume("--group", "shipping", "--start", "BEGIN")) == [*"012345"]
    assert consume("--group", "later", "--start", "END") == []
    assert "subscriptions reset" in consume("--group", "billing", "--start", "0=1", code=2)[0]


def test_metadata_and_times(consume):
    """The place, time and key of events can be printed. A time starts at the events of that time or later."""
    found = consume("--with-metadata")
    assert ids([line["event"] for line in found]) == [*"012345"]
    assert all(line["key"] for line in found)
    one = found[-1]
    after = consume("--start", f"{one['partition']}={one['offset']}")
    assert after == []
    times = sorted(line["timestamp"] for line in found)
    assert ids(consume("--start", times[-1])) == sorted(
        line["event"]["id"] for line in found if line["timestamp"] == times[-1]
    )
    assert len(consume("--start", times[0], "--limit", "3")) == 3
    assert consume("--start", to_rfc3339(4_102_444_800_000)) == []
    assert "not a time" in consume("--start", "2024-99-01T00:00:00Z", code=2)[0]
    assert "not both" in consume("--cursors", "--with-metadata", code=2)[0]
