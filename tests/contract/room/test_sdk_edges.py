"""What users of the SDK see first: names, reprs, plain values as events, and the use of what is closed."""

from __future__ import annotations

import math
import pydoc
from decimal import Decimal

import pytest

import strandline
from strandline import EventType, Message, Schedule
from strandline.errors import Conflict, Invalid, Malformed, Unavailable


def test_the_names_of_the_package_are_shown():
    """`dir` and `help` list the public names, which are imported when they are first used."""
    assert set(strandline.__all__) <= set(dir(strandline))
    assert set(strandline.log.__all__) <= set(dir(strandline.log))
    text = pydoc.render_doc(strandline, renderer=pydoc.plaintext)
    assert all(name in text for name in ("class EventType", "connect(", "open("))


def test_an_event_type_may_exist(log, name):
    """With `exist_ok` the existing event type is returned; without it, the name is taken."""
    made = log.create(EventType(name, partitions=2), exist_ok=True)
    assert log.create(EventType(name, partitions=5), exist_ok=True) == made
    with pytest.raises(Conflict):
        log.create(EventType(name))


def test_one_event_needs_no_list(log, name):
    """A dict is one event."""
    log.create(EventType(name))
    assert log.publish(name, {"a": 1}).count == 1
    assert [event for batch in log.read(name) for event in batch] == [{"a": 1}]


def test_decimals_are_numbers(log, name):
    """A Decimal is stored with all its digits."""
    log.create(EventType(name))
    log.publish(name, {"total": Decimal("12.50")}).raise_for_failed()
    (batch,) = log.read(name)
    assert batch.values == [b'{"total":12.50}']
    assert [*batch] == [{"total": 12.5}]


@pytest.mark.parametrize("value", [math.nan, -math.inf, Decimal("NaN"), Decimal("-Infinity")])
def test_numbers_that_json_does_not_have_are_refused(log, name, value):
    """They are not stored as null. The error says where they are."""
    log.create(EventType(name))
    with pytest.raises(Malformed, match=r"at lines\[1\]\.total is not a number of JSON"):
        log.publish(name, [{"lines": [{"total": None}, {"total": value}], "note": "null"}])
    with pytest.raises(Invalid, match="is not a number of JSON"):
        Message({"total": value})
    assert list(log.read(name)) == []


def test_what_users_print_is_readable(log, name):
    """A batch shows its place and size; an event type only what differs from the defaults."""
    kind = log.create(EventType(name))
    log.publish(name, [{"n": 1}, {"n": 2}]).raise_for_failed()
    (batch,) = log.read(name)
    assert repr(batch) == f"<Batch of '{name}', partition '0', up to '{batch.offset}': 2 events>"
    assert repr(kind).startswith(f"EventType(name='{name}', ")
    assert "cleanup_policy" not in repr(kind)


def test_a_closed_consumer_says_so(log, orders):
    """It used to open another stream, also in a thread that was just waiting for events."""
    with log.subscribe([orders], group="billing") as consumer:
        assert repr(consumer).endswith(f"Consumer of {orders!r}, group 'billing'>")
        consumer.receive(0)
    with pytest.raises(Unavailable, match="consumer is closed; subscribe again"):
        consumer.receive(0)
    with pytest.raises(Unavailable, match="consumer is closed"):
        list(consumer)


def test_readers_end_with_their_client(http, server_url, name):
    """A consumer waited for ever after its client was closed, and a reader for a minute."""
    http.create(EventType(name))
    http.publish(name, {"n": 1}).raise_for_failed()
    with strandline.connect(server_url) as remote:
        consumer = remote.log.subscribe([name], group="audit")
        batches = iter(remote.log.read(name, start="BEGIN", follow=True))
        next(batches)
    with pytest.raises(Unavailable, match="is closed; connect again"):
        consumer.receive()
    with pytest.raises(Unavailable, match="is closed; connect again"):
        list(batches)


def test_rooms_say_what_they_are(tmp_path):
    """The platform, a client, the messages of a schedule and the journals of a topic."""
    with strandline.open(tmp_path) as platform:
        assert repr(platform) == f"strandline.open('{tmp_path}')"
        platform.schedules.create(Schedule("calls"))
        platform.journals.create("carts")
        assert repr(platform.schedule("calls")) == "<LocalMessages of 'calls'>"
        assert repr(platform.journal("carts")) == "<LocalJournal of 'carts'>"
    with strandline.connect("http://127.0.0.1:1") as remote:
        assert repr(remote) == "strandline.connect('http://127.0.0.1:1')"
        assert repr(remote.schedule("calls")) == "<HttpMessages of 'calls'>"
        assert repr(remote.journal("carts")) == "<HttpJournal of 'carts'>"


ACTS = {
    "publish": lambda rooms: rooms.log.publish("orders", [{}]),
    "get": lambda rooms: rooms.log.get("orders"),
    "create": lambda rooms: rooms.log.create(EventType("visits")),
    "read": lambda rooms: list(rooms.log.read("orders")),
    "subscribe": lambda rooms: rooms.log.subscribe(["orders"]),
    "schedules": lambda rooms: rooms.schedules.all(),
    "journals": lambda rooms: list(rooms.journal("carts").read("one")),
    "feeds": lambda rooms: rooms.feeds.get("home", 0, 20),
    "archive": lambda rooms: rooms.archive.status(),
}


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """A platform that was used and closed, and a client that was closed."""
    platform = strandline.open(tmp_path_factory.mktemp("closed"))
    platform.log.create(EventType("orders"))
    platform.journals.create("carts")
    platform.log.publish("orders", [{}]).raise_for_failed()
    platform.close()
    platform.close()  # as often as one likes
    remote = strandline.connect("http://127.0.0.1:1")
    remote.close()
    return {"platform": platform, "remote": remote}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("which", ["platform", "remote"])
def test_what_is_closed_says_so(closed, which, act):
    """Every use after `close` is Unavailable and says that it is closed."""
    with pytest.raises(Unavailable, match="closed"):
        ACTS[act](closed[which])
