"""Schedules and the operations on their messages."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from services import until
from strandline import Message, Schedule
from strandline.errors import BadTimestamp, Conflict, Forbidden, Invalid, NotFound
from strandline.schedule import ListQuery, OwnerAct, moment_of, raise_for_failed
from strandline.schedule.message import value_of
from strandline.schedule.model import ChosenMessage, ItemAnswer, Lease, LeaseAct, LoadStep, Moment, NewMessage
from strandline.schedule.rules import MAX_MS

HOUR_MS = 3_600_000
LEASE_MS = 60_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def codes(answers: list[ItemAnswer]) -> list[str | None]:
    return [answer.code for answer in answers]


def pulled(messages, consumer: str = "ada", lease_ms: int = LEASE_MS) -> Lease:
    """Lease the one message that is due."""
    (lease,) = messages.pull(consumer, lease_ms, 1, wait_ms=30_000)
    return lease


def held(lease: Lease, in_ms: int = 0) -> LeaseAct:
    one = lease.message
    return LeaseAct(one.id, one.consumer, one.version, Moment(in_ms, relative=True))


# -- schedules


def test_a_schedule_lives_from_create_to_delete(rooms):
    """Create is idempotent, put replaces all settings, and buckets never change."""
    made = Schedule("life", max_attempts=3)
    rooms.schedules.create(made)
    rooms.schedules.create(made)
    assert rooms.schedules.get("life") == made
    with pytest.raises(Conflict, match="exists with other settings; change them with put"):
        rooms.schedules.create(Schedule("life"))
    assert rooms.schedules.put(Schedule("life", dedupe_ms=5)) is False
    assert rooms.schedules.get("life") == Schedule("life", dedupe_ms=5)
    with pytest.raises(Conflict, match="buckets"):
        rooms.schedules.put(Schedule("life", buckets=7))
    assert rooms.schedules.put(Schedule("life.2")) is True
    assert [one.name for one in rooms.schedules.all() if one.name.startswith("life")] == ["life", "life.2"]
    for name in ("life", "life.2"):
        rooms.schedules.delete(name)
        with pytest.raises(NotFound):
            rooms.schedules.get(name)
        with pytest.raises(NotFound):
            rooms.schedules.delete(name)


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "x?y=1", "ä", "a" * 256, "a\n"])
def test_what_is_not_a_name_is_no_schedule(rooms, name):
    """Reads say NotFound, and create says which names there are."""
    for act in (rooms.schedules.get, rooms.schedules.delete, rooms.schedule):
        with pytest.raises(NotFound):
            act(name)
    for make in (rooms.schedules.create, rooms.schedules.put):
        with pytest.raises(Invalid, match="is not a name"):
            make(Schedule(name))


@pytest.mark.parametrize("settings", [{"max_attempts": 1.5}, {"max_lease_ms": "100"}, {"dedupe_ms": True}])
def test_settings_are_integers(rooms, settings):
    """Another type is refused before anything is stored."""
    with pytest.raises(Invalid, match=r"must be an integer, not (1\.5|'100'|True)"):
        rooms.schedules.put(Schedule("typed", **settings))
    with pytest.raises(NotFound):
        rooms.schedules.get("typed")


def test_every_operation_on_an_unknown_schedule_is_not_found(rooms):
    """The name is checked by the operation, not by `schedule`."""
    messages = rooms.schedule("nothing")
    own, lease = OwnerAct("a", "g"), LeaseAct("a", "ada", 1, Moment(1000, relative=True))
    for act in (
        lambda: messages.create([Message({})]),
        lambda: messages.extend([lease]),
        lambda: messages.release([lease]),
        lambda: messages.delete([lease]),
        lambda: messages.delete([own]),
        lambda: messages.move([own]),
        lambda: messages.get("a"),
        lambda: messages.read(own),
        lambda: messages.list(ListQuery()),
        lambda: messages.counts(0, 10),
        lambda: messages.pull("ada", 1000, 1),
        lambda: messages.lease("ada", 1000, [ChosenMessage("a")]),
        lambda: messages.subscribe("ada", 1000, 1),
        lambda: messages.consume("ada"),
        lambda: rooms.schedule("nothing.dead").put_back([own]),
    ):
        with pytest.raises(NotFound, match="nothing"):
            act()


# -- producers


def test_a_message_is_created_read_and_listed(messages):
    """The example of the documentation: an id, a group, a body and a moment."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    (answer,) = messages.create([Message({"user": 7}, at=tomorrow, group="signup", id="user-7-day-1")])
    assert (answer.id, answer.status, answer.at_ms) == ("user-7-day-1", "ok", round(tomorrow.timestamp() * 1000))
    found = messages.get("user-7-day-1")
    assert (found.producer_group, found.consumer, found.delivery_count) == ("signup", None, 0)
    assert (found.due_ms, found.version) == (answer.at_ms, answer.version)
    read = messages.read(OwnerAct("user-7-day-1", "signup"))
    assert (read.message, value_of(read.body)) == (found, {"user": 7})
    assert [*messages.list(ListQuery("signup"))] == [found]
    assert [*messages.list(ListQuery("other"))] == [*messages.list(ListQuery(state="available"))] == []


@pytest.mark.parametrize("value", [b"", b"\x00\xff" * 10, {"a": [1.5, None, "ä"]}, "text", 7, None, [], 2**60])
def test_bodies_are_read_back_as_they_were(messages, value):
    """JSON values and bytes, by the owner and by the holder of the lease."""
    raise_for_failed(messages.create([Message(value, id="one")]))
    assert value_of(messages.read(OwnerAct("one", "default")).body) == value
    lease = pulled(messages)
    assert value_of(lease.body) == value_of(messages.read(held(lease)).body) == value


def test_a_message_without_an_id_gets_one(messages):
    """Ids are generated before the request, and in the answer."""
    answers = messages.create([NewMessage("", "g", Message(n).body) for n in range(3)])
    assert len({answer.id for answer in answers}) == 3
    assert sorted(one.id for one in messages.list(ListQuery())) == sorted(answer.id for answer in answers)


def test_a_repeated_create_names_the_version_that_is_there(messages):
    """Only with the same group and body; then it counts as success."""
    made = Message({"n": 1}, id="one", in_ms=HOUR_MS)
    (first,) = messages.create([made])
    (again,) = messages.create([made])
    assert (again.code, again.version) == ("already_exists", first.version)
    raise_for_failed([again])
    for other in (Message({"n": 2}, id="one"), Message({"n": 1}, id="one", group="other")):
        (refused,) = messages.create([other])
        assert (refused.code, refused.version) == ("already_exists", None)
        with pytest.raises(Conflict, match="message 'one'"):
            raise_for_failed([refused])


def test_one_bad_item_does_not_fail_the_others(make):
    """Each item has its own answer, in the order asked; also if all are refused."""
    messages = make(max_body_bytes=10, max_future_ms=HOUR_MS)
    bad = [
        Message("x" * 100, id="large"),
        Message({}, in_ms=2 * HOUR_MS, id="far"),
        Message({}, id="a" * 256),
        Message({}, at=2**63, id="never"),
    ]
    expected = ["body_too_large", "too_far", "invalid", "invalid"]
    assert codes(messages.create([Message({}, id="good"), *bad])) == [None, *expected]
    assert codes(messages.create(bad)) == expected
    with pytest.raises(BadTimestamp, match=r"'far'.*\(2 more items failed\)"):
        raise_for_failed(messages.create(bad[1:]))
    assert messages.create([]) == []


def test_a_batch_may_have_more_items_and_bytes_than_one_request(messages):
    """Over HTTP the client splits it. The answers are in the order asked."""
    large = [Message(b"x" * 2**20, id=f"large-{n}", in_ms=HOUR_MS) for n in range(10)]
    many = [Message(n, id=f"m-{n}", in_ms=HOUR_MS) for n in range(10_002)]
    answers = messages.create([*large, *many[:-1], large[0], many[-1]])
    assert [one.id for one in answers] == [*(one.id for one in [*large, *many[:-1]]), "large-0", "m-10001"]
    assert codes(answers) == [*[None] * 10_011, "already_exists", None]
    assert codes(messages.delete([OwnerAct(one.id, "default") for one in many])) == [None] * 10_002
    taken = messages.lease("ada", LEASE_MS, [ChosenMessage(one.id) for one in many])
    assert {one.code for one in taken} == {"not_found"}


def test_items_of_other_types_are_malformed(messages):
    """A moment such as `time.time() * 1000` is refused, not stored; nor is it changed on its way to a server."""
    strange = [
        *(Message({}, at=at) for at in (time.time() * 1000, True, "now", float("nan"))),
        *(Message({}, in_ms=in_ms) for in_ms in (1.5, False)),
        *(Message({}, id=ident) for ident in (5, b"x", "\ud800")),
        Message({}, group=None),
    ]
    answers = messages.create([Message({}, id="good", in_ms=HOUR_MS), *strange])
    assert codes(answers) == [None, *["invalid"] * len(strange)]
    assert [one.id for one in messages.list(ListQuery())] == ["good"]
    version = answers[0].version
    assert codes(messages.delete([OwnerAct("good", "default", float(version))])) == ["invalid"]
    assert codes(messages.move([OwnerAct("good", "default", moment=Moment(2.5, relative=True))])) == ["invalid"]
    assert codes(messages.lease("ada", LEASE_MS, [ChosenMessage(b"good"), ChosenMessage("good", True)])) == [
        "invalid",
        "invalid",
    ]
    assert messages.get("good").version == version


def test_arguments_of_other_types_are_invalid(messages):
    """Also when the settings of the schedule are known already."""
    assert messages.pull("ada", LEASE_MS, 1) == []
    for act in (
        lambda: messages.pull("ada", str(LEASE_MS), 1),
        lambda: messages.pull(5, LEASE_MS, 1),
        lambda: messages.pull("ada", LEASE_MS, 1.0),
        lambda: messages.pull("ada", 1000.5, 1),
        lambda: messages.pull("ada", LEASE_MS, 1, 1.5),
        lambda: messages.lease(None, LEASE_MS, [ChosenMessage("a")]),
        lambda: messages.subscribe(5, LEASE_MS, 1),
        lambda: messages.subscribe("ada", LEASE_MS, 1.5),
        lambda: messages.read(LeaseAct("a", "ada", -1)),
    ):
        with pytest.raises(Invalid):
            act()


def test_an_owner_moves_and_cancels(messages):
    """Only the group that created a message may, and a repeated delete succeeds."""
    raise_for_failed(messages.create([Message({}, id="one", in_ms=HOUR_MS, group="signup")]))
    moment = moment_of(at=datetime.now(UTC) + timedelta(hours=2))
    (moved,) = messages.move([OwnerAct("one", "signup", moment=moment)])
    assert (moved.status, moved.at_ms, messages.get("one").due_ms) == ("ok", moment.ms, moment.ms)
    assert codes(messages.move([OwnerAct("one", "other"), OwnerAct("two", "signup")])) == [
        "not_owner",
        "not_found",
    ]
    assert codes(messages.delete([OwnerAct("one", "signup", version=1)])) == ["stale_version"]
    assert codes(messages.delete([OwnerAct("one", "signup")])) == [None]
    assert codes(messages.delete([OwnerAct("one", "signup")])) == ["already_deleted"]
    with pytest.raises(NotFound):
        messages.get("one")


def test_only_owner_and_holder_read_a_body(messages):
    """Other claims are Forbidden."""
    raise_for_failed(messages.create([Message({}, id="one", group="signup")]))
    lease = pulled(messages)
    for claim in (
        OwnerAct("one", "other"),
        LeaseAct("one", "bob", lease.message.version),
        LeaseAct("one", "ada", lease.message.version + 1),
    ):
        with pytest.raises(Forbidden):
            messages.read(claim)
    with pytest.raises(NotFound):
        messages.read(OwnerAct("two", "signup"))


@pytest.mark.parametrize("ident", [".", "..", "a/b", "a b?c=d&e#f%", "ä€🙂", "..%2F", "\\", '"', "a" * 255])
def test_an_id_may_have_any_characters(messages, ident):
    """Ids in paths and queries are escaped."""
    raise_for_failed(messages.create([Message(ident, id=ident, group=ident, in_ms=HOUR_MS)]))
    assert messages.get(ident).id == ident
    assert value_of(messages.read(OwnerAct(ident, ident)).body) == ident
    assert [one.id for one in messages.list(ListQuery(ident))] == [ident]
    assert codes(messages.delete([OwnerAct(ident, ident)])) == [None]


@pytest.mark.parametrize("ident", ["", "a\0b", "a" * 256])
def test_what_is_not_an_id_is_not_found(messages, ident):
    """An id that no message can have."""
    with pytest.raises(NotFound):
        messages.get(ident)


def test_lists_go_over_pages(messages):
    """All messages come, whatever the size of a page; an empty page size is refused."""
    ids = [f"m-{number:04d}" for number in range(25)]
    raise_for_failed(messages.create([Message({}, id=one, in_ms=HOUR_MS) for one in ids]))
    for limit in (1, 7, 25, 5000):
        assert [one.id for one in messages.list(ListQuery(limit=limit))] == ids
    assert [one.id for one in messages.list(ListQuery(after="m-0020"))] == ids[21:]
    assert [one.id for one in messages.list(ListQuery(state="waiting", limit=4))] == ids


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 1.5},
        {"state": "dead"},
        {"producer_group": ""},
        {"consumer": ""},
        {"producer_group": "g", "consumer": "c"},
        {"after": "a\0"},
    ],
)
def test_a_list_that_is_not_possible_is_refused(messages, query):
    """An empty group does not mean all groups."""
    raise_for_failed(messages.create([Message({}, id="one")]))
    with pytest.raises(Invalid):
        [*messages.list(ListQuery(**query))]


def test_the_load_ahead_is_counted(messages):
    """Counts by state, and by steps; steps without messages are listed too."""
    start = now_ms() // HOUR_MS * HOUR_MS + 24 * HOUR_MS
    moments = [start, start + 1, start + 2 * HOUR_MS]
    raise_for_failed(messages.create([Message({}, at=at) for at in moments] + [Message({}, id="due")]))
    pulled(messages)
    total = messages.counts(0, MAX_MS)
    assert (total.total, total.waiting, total.processing, total.available) == (4, 3, 1, 0)
    assert total.steps == [LoadStep(0, 4, 3, 1)]
    ahead = messages.counts(start, start + 3 * HOUR_MS, HOUR_MS)
    assert [(step.from_ms - start, step.total, step.waiting) for step in ahead.steps] == [
        (0, 2, 2),
        (HOUR_MS, 0, 0),
        (2 * HOUR_MS, 1, 1),
    ]
    for end in (2**53, 2**63 - 1):
        assert messages.counts(0, end).total == messages.counts(0, end, end).total == 4
    for impossible in ((0, MAX_MS, 1), (0, 10, 0), (-1, 10), (10, 10)):
        with pytest.raises(Invalid):
            messages.counts(*impossible)


# -- consumers


def test_a_lease_is_extended_released_and_deleted_by_its_version(messages):
    """Each change gives a new version; an older version is stale."""
    raise_for_failed(messages.create([Message({"n": 1}, id="one")]))
    lease = pulled(messages)
    assert (lease.message.consumer, lease.message.delivery_count, value_of(lease.body)) == ("ada", 1, {"n": 1})
    (extended,) = messages.extend([held(lease, LEASE_MS)])
    assert (extended.status, extended.version) == ("ok", lease.message.version + 1)
    assert codes(messages.extend([held(lease, LEASE_MS)])) == ["stale_version"]
    assert codes(messages.delete([OwnerAct("one", "default")])) == ["lease_active"]
    newer = msgspec.structs.replace(held(lease, 6), version=extended.version)
    assert codes(messages.release([newer])) == [None]
    second = pulled(messages, "bob")
    assert (second.message.id, second.message.delivery_count) == ("one", 2)
    assert codes(messages.delete([newer])) == ["not_holder"]
    assert codes(messages.delete([held(second)])) == [None]
    assert codes(messages.delete([held(second)])) == ["already_deleted"]


def test_acts_without_items_have_no_answers(messages):
    """Also in a push session, at once."""
    feed = messages.subscribe("ada", LEASE_MS, 1)
    for room in (messages, feed):
        assert room.extend([]) == room.release([]) == room.delete([]) == []
    feed.close()


def test_chosen_messages_are_leased(messages):
    """Each is a lease or the answer that refuses it; also if all are refused."""
    new = [Message({"n": 1}, id="due"), Message({}, id="later", in_ms=HOUR_MS)]
    raise_for_failed(messages.create(new))
    version = messages.get("due").version
    chosen = [ChosenMessage("later"), ChosenMessage("due", version), ChosenMessage("none")]
    assert messages.lease("ada", LEASE_MS, []) == []
    later, due, none = messages.lease("ada", LEASE_MS, chosen)
    assert (later.code, none.code) == ("not_available", "not_found")
    assert (due.message.consumer, value_of(due.body)) == ("ada", {"n": 1})
    assert codes(messages.lease("ada", LEASE_MS, chosen)) == ["not_available", "not_available", "not_found"]


@pytest.mark.parametrize("lease_ms", [-1, 0, 5, 10**9])
def test_a_lease_of_a_wrong_length_is_refused(messages, lease_ms):
    """`lease_ms` is checked by every way to get a lease."""
    for act in (
        lambda: messages.pull("ada", lease_ms, 1),
        lambda: messages.lease("ada", lease_ms, [ChosenMessage("a")]),
        lambda: messages.subscribe("ada", lease_ms, 1),
    ):
        with pytest.raises(BadTimestamp, match="lease_ms"):
            act()


def test_a_pull_returns_when_a_message_is_due(messages):
    """It waits for the moment of the message, and returns nothing if none comes."""
    assert messages.pull("ada", LEASE_MS, 1) == messages.pull("ada", LEASE_MS, 1, wait_ms=20) == []
    raise_for_failed(messages.create([Message({}, id="soon", in_ms=50)]))
    lease = pulled(messages)
    assert lease.message.id == "soon"
    assert lease.message.at_ms - LEASE_MS >= lease.message.due_ms


def test_dead_messages_are_seen_put_back_and_deleted(rooms, make):
    """After `max_attempts` deliveries a message is dead: its id stays taken, and its owner decides."""
    messages = make(max_attempts=1)
    dead = rooms.schedule(f"{messages.name}.dead")
    raise_for_failed(messages.create([Message({}, id=one, group="g") for one in ("one", "two")]))
    for lease in (pulled(messages), pulled(messages)):
        raise_for_failed(messages.release([held(lease, 6)]))
    until(
        lambda: messages.pull("ada", LEASE_MS, 10) == [] and dead.counts(0, MAX_MS).total == 2, "two dead messages"
    )
    assert [one.id for one in dead.list(ListQuery("g"))] == ["one", "two"]
    assert [*messages.list(ListQuery())] == []
    assert dead.get("one").delivery_count == 1
    assert codes(messages.create([Message({"other": 1}, id="one")])) == ["already_exists"]
    for act in (lambda: dead.create([Message({})]), lambda: dead.pull("ada", LEASE_MS, 1)):
        with pytest.raises(Conflict):
            act()
    assert codes(dead.put_back([OwnerAct("one", "x"), OwnerAct("one", "g")])) == ["not_owner", None]
    assert codes(dead.delete([OwnerAct("two", "g")])) == [None]
    assert pulled(messages).message.id == "one"
    assert [*dead.list(ListQuery())] == []


def test_the_clocks_are_reported(rooms):
    """The node knows how far its clock is from the database's."""
    report = rooms.schedules.clocks()
    assert abs(report.node.offset_ms) < 10_000
    assert report.degraded is None
