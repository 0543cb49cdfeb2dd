"""`strandline subscriptions`, on a data directory and on a server."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

import strandline
from services import run_cli
from strandline import EventType


@pytest.fixture
def orders(data: Path, url: str) -> str:
    """An event type of two partitions with eight events."""
    name = f"cli.orders-{uuid.uuid4().hex}"
    with strandline.open(data) as sl:
        sl.log.create(EventType(name, partitions=2, partition_strategy="hash", partition_key_fields=("n",)))
        sl.log.publish(name, [{"n": n} for n in range(8)]).raise_for_failed()
    return name


def good(*arguments: str) -> str:
    done = run_cli("subscriptions", *arguments)
    assert (done.returncode, done.stderr.decode()) == (0, "")
    return done.stdout.decode()


def parsed(*arguments: str):
    return json.loads(good(*arguments, "--json"))


def left(place: list[str], ident: str) -> int:
    (stats,) = parsed("stats", ident, *place)
    return sum(partition["unconsumed_events"] for partition in stats["partitions"])


def test_a_subscription_lives_from_create_to_delete(place, orders):
    """Create, list, show, stats and delete work with text and JSON output. Create is idempotent."""
    made = parsed("create", orders, "--group", "g", "--application", "shop", "--read-from", "begin", *place)
    ident = made["id"]
    assert parsed("create", orders, "--group", "g", "--application", "shop", *place) == made
    assert f"{ident} exists already" in good("create", orders, "--group", "g", "--application", "shop", *place)
    assert [one["id"] for one in parsed("list", "--application", "shop", "--event-type", orders, *place)] == [
        ident
    ]
    assert ident in good("list", *place)
    assert parsed("show", ident, *place)["cursors"] == []
    assert "it starts at the begin" in good("show", ident, *place)
    assert "unassigned" in good("stats", ident, *place)
    assert parsed("delete", ident, "--yes", *place) == {"deleted": ident}
    assert parsed("list", "--event-type", orders, *place) == []


def test_cursors_are_put_anywhere(place, orders):
    """A reset moves all cursors, or those of one partition."""
    ident = parsed("create", orders, *place)["id"]
    assert "reset 2 partitions to BEGIN" in good("reset", ident, "--to", "BEGIN", *place)
    assert left(place, ident) == 8
    parsed("reset", ident, "--to", "END", "--event-type", orders, "--partition", "0", *place)
    kept = left(place, ident)
    assert 0 < kept < 8
    good("reset", ident, "--to", "2101-01-01T00:00:00Z", *place)
    assert left(place, ident) == 0
    assert [c["partition"] for c in parsed("show", ident, *place)["cursors"]] == ["0", "1"]


def test_what_goes_wrong_is_one_line(place, orders):
    """An error is one line that says what to do next. The exit code is 1, or 2 for wrong usage."""
    ident = parsed("create", orders, *place)["id"]
    for arguments, code in [
        (["show", str(uuid.uuid4())], 1),
        (["delete", str(uuid.uuid4()), "--yes"], 1),
        (["create", "cli.nothing"], 1),
        (["reset", ident, "--to", "nonsense"], 1),
        (["reset", ident, "--to", "BEGIN", "--partition", "9"], 2),
        (["create"], 2),
        (["reset", ident], 2),
    ]:
        done = run_cli("subscriptions", *arguments, *place)
        assert (done.returncode, done.stdout) == (code, b""), arguments
        (line,) = done.stderr.decode().splitlines()
        assert line.startswith("error: ")
        assert "; " in line
