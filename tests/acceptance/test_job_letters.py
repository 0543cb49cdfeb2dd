"""Records that the jobs `fanout` and `relay` have set aside: the same in process, over HTTP and in commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import strandline
from services import Server
from services.server import run_cli
from social_network import create, fanout
from strandline import EventType
from strandline.client import Remote
from strandline.errors import Invalid, NotFound
from strandline.platform import Platform
from strandline.schedule.relay.starting import Relays
from strandline.schedule.relay.values import RelayOptions

FOLLOW = {"author": "ada", "follower": "bob", "action": "block"}
POSTS = [{"author": "ada", "id": name} for name in ("x", "y", "z")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("letters") / "data"
    with strandline.open(data) as node:
        create(node)
        node.log.publish("posts", POSTS).raise_for_failed()
        node.log.publish("follows", [FOLLOW]).raise_for_failed()
        fanout(node).once()
        for name in ("orders", "later"):
            node.log.create(EventType(name))
        node.log.publish("orders", [{"n": number} for number in range(3)]).raise_for_failed()
        options = RelayOptions("orders", "later", "buffer", due_field="at")
        Relays(node.log, node.schedules, node.databases, node.settings).process(options).once()
    return data


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Server]:
    with Server(data) as server:
        yield server


@pytest.fixture(params=["local", "http"])
def rooms(request: pytest.FixtureRequest, data: Path, server: Server) -> Iterator[Platform | Remote]:
    with strandline.open(data) if request.param == "local" else strandline.connect(server.url) as rooms:
        yield rooms


def test_what_the_fan_out_has_set_aside(rooms):
    letters = rooms.feeds.fanout_letters()
    assert [one.source for one in letters] == ["follows", "posts", "posts", "posts"]
    assert json.loads(letters[0].value) == FOLLOW
    assert {one.reason for one in letters[1:]} == {f"the id {name!r} is not a number" for name in "xyz"}


def test_what_a_relay_has_set_aside(rooms):
    letters = rooms.schedules.relay_letters("buffer")
    assert sorted(json.loads(one.value)["n"] for one in letters) == [0, 1, 2]
    assert {one.reason for one in letters} == {"the field 'at' is missing"}
    for name in ("another", "", "×", "buffer.dead"):
        with pytest.raises(NotFound):
            rooms.schedules.relay_letters(name)


def test_the_list_goes_on_after_a_record(rooms, monkeypatch):
    monkeypatch.setattr("strandline.client.pages._LARGEST_PAGE", 2)
    for read, place in (
        (rooms.feeds.fanout_letters, lambda letter: letter.place),
        (lambda **given: rooms.schedules.relay_letters("buffer", **given), lambda letter: letter.id),
    ):
        letters = read(limit=1000)
        assert read(limit=3) == letters[:3]
        for number, letter in enumerate(letters):
            assert read(after=place(letter)) == letters[number + 1 :]


@pytest.mark.parametrize(
    "after", ["posts", "posts/x/001-0001--1", "posts/1/001\0", "posts/99999999999/001-0001--1"]
)
def test_a_place_that_cannot_be_is_refused(rooms, after):
    with pytest.raises(Invalid, match="event type/partition/cursor"):
        rooms.feeds.fanout_letters(after=after)


def test_a_directory_without_feeds_stays_without(tmp_path):
    with strandline.open(tmp_path / "data") as node:
        assert node.feeds.fanout_letters() == []
    assert not (tmp_path / "data" / "feeds.db").exists()


@pytest.mark.parametrize("command", [("feeds", "fanout-dead"), ("schedule", "relay-dead", "buffer")])
def test_commands(command, data, server):
    places = (["--url", server.url], ["--data", str(data)])
    found = [run_cli(*command, *place, "--json") for place in places]
    assert [one.returncode for one in found] == [0, 0]
    assert found[0].stdout == found[1].stdout
    first, *_ = json.loads(found[0].stdout)
    assert first.keys() >= {"partition", "cursor", "reason", "value"}
    assert first["reason"] in run_cli(*command, *places[0]).stdout.decode()
