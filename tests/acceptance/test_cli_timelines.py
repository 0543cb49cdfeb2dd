"""Storages, switches and more partitions on the command line: on a data directory and on a server."""

from __future__ import annotations

import json

import pytest

from services import Server, run_cli


@pytest.fixture(params=["data", "url"])
def target(request, tmp_path):
    """The options that select a data directory or a server."""
    with Server(tmp_path / "data", logs_level="warning") as server:
        yield ["--data", str(tmp_path / "data")] if request.param == "data" else ["--url", server.url]


def good(*arguments: str, stdin: bytes = b"") -> str:
    done = run_cli(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def bad(*arguments: str) -> tuple[int, str]:
    done = run_cli(*arguments)
    assert b"Traceback" not in done.stderr
    return done.returncode, done.stderr.decode()


def test_an_event_type_moves_and_grows(target):
    """An event type is switched and gets more partitions while a server runs; all events stay readable."""
    good("event-types", "create", "orders", "--partitions", "2", *target)
    good("publish", "orders", *target, stdin=b'{"n": 0}\n')
    assert "never switched" in good("timelines", "status", "orders", *target)
    good("storages", "add", "second", "--sqlite", "second", *target)
    assert "can be switched" in good("timelines", "switch", "orders", "second", "--dry-run", *target)
    moved = json.loads(good("timelines", "switch", "orders", "second", "--json", *target))
    assert (moved["order"], moved["storage_id"]) == (2, "second")
    assert "switch to second: done" in good("timelines", "status", "orders", *target)
    good("event-types", "grow", "orders", "4", *target)
    good("publish", "orders", *target, stdin=b'{"n": 1}\n')
    lines = good("consume", "orders", "--start", "BEGIN", *target).splitlines()
    assert sorted(json.loads(line)["n"] for line in lines) == [0, 1]
    assert len(json.loads(good("partitions", "orders", "--json", *target))) == 4


def test_storages_are_chosen_and_removed(target):
    """The default storage can be changed, and an unused storage can be removed."""
    good("storages", "add", "second", "--sqlite", "second", *target)
    assert json.loads(good("storages", "default", "second", "--json", *target))["default"] is True
    good("event-types", "create", "visits", *target)
    assert json.loads(good("timelines", "list", "visits", "--json", *target))[0]["storage_id"] == "second"
    good("storages", "default", "default", *target)
    good("storages", "add", "third", "--kafka", "127.0.0.1:1", "--property", "client.id=x", *target)
    good("storages", "remove", "third", "--yes", *target)
    assert bad("storages", "remove", "second", "--yes", *target)[0] == 1


def test_mistakes_are_named(target):
    """Wrong usage is exit code 2. Unknown names and conflicts are exit code 1."""
    good("event-types", "create", "orders", "--partitions", "2", *target)
    assert bad("storages", "add", "x", *target)[0] == 2
    assert bad("storages", "add", "x", "--kafka", "h:1", "--property", "nothing", *target)[0] == 2
    code, text = bad("timelines", "switch", "orders", "nowhere", *target)
    assert (code, "nowhere" in text) == (1, True)
    code, text = bad("timelines", "abort", "orders", *target)
    assert (code, "under way; there is nothing to abort" in text) == (1, True)
    code, text = bad("storages", "add", "default", "--sqlite", "other", *target)
    assert (code, "exists already; choose another id" in text) == (1, True)
    code, text = bad("event-types", "grow", "orders", "1", *target)
    assert (code, "shrink" in text) == (1, True)
    assert bad("timelines", "status", "nothing", *target)[0] == 1
