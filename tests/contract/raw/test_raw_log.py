"""Event types that hold actions of journals: creating, appending and reading, on every engine."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from raw_records import append
from services import until
from strandline import EventType
from strandline.errors import Conflict, Gap, Invalid, NotFound, OutcomeUnknown
from strandline.log.cursors import Position
from strandline.log.records import NewRecords
from strandline.log.storage import UNKNOWN, Placed

HEADERS = (("journal.action", b'{"purge": {}}'),)


def record(value: bytes | None, key: bytes = b"one", time_ms: int = 1000) -> NewRecords:
    return NewRecords(time_ms, [value], [key], [HEADERS])


def values(raw, after=None, *, until_=None, partition=0, name="accounts"):
    batches = raw.read(name, partition, after, until_ or raw.end(name, partition))
    return [value for batch in batches for value in batch.records["value"].to_pylist()]


# -- event types


def test_a_topic_is_created_once(raw):
    """The same request again changes nothing, with other values it is refused."""
    made, is_new = raw.create("accounts", 3)
    assert (made.partitions, made.storage_id, made.adopted, is_new) == (3, "first", False, True)
    assert raw.create("accounts", 3) == raw.create("accounts", 3, "first") == (made, False)
    assert raw.create("accounts") == (made, False)
    for other in [(4,), (3, "second")]:
        with pytest.raises(Conflict, match="exists already, with 3 partitions in storage 'first'"):
            raw.create("accounts", *other)
    assert raw.topic("accounts") == made
    assert raw.topics() == [made]


def test_a_topic_is_created_in_the_storage_that_was_asked_for(raw):
    made, _ = raw.create("accounts", 1, "second")
    assert made.storage_id == "second"
    with pytest.raises(Invalid, match="storage 'third' does not exist"):
        raw.create("others", 1, "third")
    with pytest.raises(Invalid, match="not valid"):
        raw.create("no name", 1)
    with pytest.raises(Invalid, match="partitions are too many"):
        raw.create("others", 10_000_000)


def test_one_of_several_creators_is_first(opened):
    """All of them get the same topic."""
    nodes = [opened() for _ in range(3)]
    with ThreadPoolExecutor(3) as threads:
        found = [*threads.map(lambda node: node.log.raw.create("accounts", 2), nodes)]
    assert len({topic for topic, _ in found}) == 1
    assert sorted(is_new for _, is_new in found) == [False, False, True]


def test_an_ordinary_event_type_holds_no_actions(platform, raw):
    platform.log.create(EventType("orders"))
    with pytest.raises(Conflict, match="ordinary event type"):
        raw.create("orders", 1)
    for call in (raw.topic, lambda name: raw.end(name, 0), lambda name: append(raw, name, 0, record(b"x"))):
        with pytest.raises(NotFound, match="holds no journals"):
            call("orders")
    assert raw.topics() == []
    with pytest.raises(NotFound):
        raw.topic("missing")


def test_it_is_no_ordinary_event_type(platform, raw):
    """Publishing, reading and changing it as one is refused, and a client cannot make one."""
    log = platform.log
    raw.create("accounts", 2)
    kind = log.get("accounts")
    assert kind.journal == "own"
    for call in (
        lambda: log.publish("accounts", [{"n": 1}]),
        lambda: log.submit("accounts", [{"n": 1}]).result(20),
        lambda: log.update(kind),
        lambda: log.admin.grow("accounts", 3),
        lambda: [*log.read("accounts")],
    ):
        with pytest.raises(Conflict, match="actions of journals"):
            call()
    ordinary = log.create(EventType("orders", journal="own"))
    assert (ordinary.journal, log.get("orders").journal) == (None, None)
    changed = log.update(EventType("orders", journal="adopted", audience="all"))
    assert (changed.journal, changed.audience) == (None, "all")


# -- records


def test_records_are_stored_as_they_are(raw):
    """With keys, headers, and values that may be missing, which is not the same as empty."""
    raw.create("accounts", 3)
    assert append(raw, "accounts", 1, record(b"first")) == [Position(1, 0)]
    several = NewRecords(
        2000, [None, b"", b"second", None], [b"a", b"b", None, b"d"], [None, HEADERS, None, HEADERS]
    )
    assert append(raw, "accounts", 1, several) == [Position(1, offset) for offset in (1, 2, 3, 4)]
    assert append(raw, "accounts", 1, NewRecords(3000, [None])) == [Position(1, 5)]
    (batch,) = raw.read("accounts", 1, None, raw.end("accounts", 1))
    assert batch.records["value"].to_pylist() == [b"first", None, b"", b"second", None, None]
    assert batch.records["key"].to_pylist() == [b"one", b"a", b"b", None, b"d", None]
    headers = [{"key": key, "value": value} for key, value in HEADERS]
    assert [each or None for each in batch.records["headers"].to_pylist()] == [
        headers, None, headers, None, headers, None,
    ]  # fmt: skip
    assert batch.records["timestamp"].to_pylist() == [1000, 2000, 2000, 2000, 2000, 3000]
    assert values(raw) == []


def test_missing_values_survive_reopening(opened):
    """Whether they were stored one by one or many at once."""
    many = [None, b"x"] * 300
    raw = opened().log.raw
    raw.create("accounts", 1)
    for value in (None, b"", None):
        append(raw, "accounts", 0, record(value))
    append(raw, "accounts", 0, NewRecords(1, many))
    assert values(opened().log.raw) == [None, b"", None, *many]


def test_the_end_and_the_first_record(raw):
    raw.create("accounts", 2)
    assert raw.end("accounts", 0) == Position(1, -1)
    assert raw.first("accounts", 0) == Position(1, 0)
    append(raw, "accounts", 0, record(b"x"))
    assert (raw.end("accounts", 0), raw.end("accounts", 1)) == (Position(1, 0), Position(1, -1))
    assert raw.first("accounts", 0) == Position(1, 0)
    with pytest.raises(NotFound, match="no partition 2"):
        raw.end("accounts", 2)
    with pytest.raises(NotFound, match="no partition 2"):
        append(raw, "accounts", 2, record(b"x"))


def test_a_read_has_the_records_between_two_positions(raw):
    raw.create("accounts", 1)
    places = [append(raw, "accounts", 0, record(b"%d" % number))[0] for number in range(5)]
    assert values(raw, places[1], until_=places[3]) == [b"2", b"3"]
    assert values(raw, places[3], until_=places[3]) == []
    batches = [*raw.read("accounts", 0, None, places[4], max_bytes=1)]
    assert [len(batch) for batch in batches] == [1] * 5


def test_creation_is_repeated_after_a_switch(platform, raw):
    raw.create("accounts", 3, "first")
    platform.log.admin.switch("accounts", "second")
    for storage in (None, "first", "second"):
        topic, created = raw.create("accounts", 3, storage)
        assert (topic.storage_id, created) == ("second", False)
    with pytest.raises(Conflict):
        raw.create("accounts", 4, "first")


def test_reads_go_on_through_timeline_switches(platform, raw):
    """Positions rise from timeline to timeline, and an empty timeline is skipped."""
    raw.create("accounts", 2)
    places = [append(raw, "accounts", 0, record(b"0"))[0]]
    for number, storage in enumerate(["second", "first", "second"], start=1):
        platform.log.admin.switch("accounts", storage)
        if number != 2:
            places += append(raw, "accounts", 0, record(b"%d" % number))
        assert raw.end("accounts", 0) == places[-1]
    assert [place.order for place in places] == [1, 2, 4]
    assert raw.end("accounts", 1) == Position(1, -1)
    assert values(raw) == [b"0", b"1", b"3"]
    assert values(raw, places[0], until_=places[1]) == [b"1"]
    assert values(raw, partition=1) == []


def test_appends_of_several_threads_go_through_switches(platform, raw):
    """Every record is where its position says, and each thread's records are in order."""
    raw.create("accounts", 1)
    stop = threading.Event()
    sent: dict[int, list[tuple[Position, bytes]]] = {thread: [] for thread in range(4)}

    def work(thread: int) -> None:
        while not stop.is_set():
            value = b"%d %d" % (thread, len(sent[thread]))
            (place,) = append(raw, "accounts", 0, record(value))
            assert raw.end("accounts", 0) >= place
            sent[thread].append((place, value))

    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(work, thread) for thread in sent]
        for storage in ("second", "first", "second"):
            before = sum(map(len, sent.values()))
            until(lambda before=before: sum(map(len, sent.values())) > before + 8, "appends between two switches")
            platform.log.admin.switch("accounts", storage)
        stop.set()
        for thread in working:
            thread.result(20)
    found = {}
    for batch in raw.read("accounts", 0, None, raw.end("accounts", 0)):
        offsets = batch.records["offset"].to_pylist()
        found.update(zip([Position(batch.timeline, o) for o in offsets], batch.values, strict=True))
    assert found == {place: value for own in sent.values() for place, value in own}
    for own in sent.values():
        assert [place for place, _ in own] == sorted(place for place, _ in own)


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_appends_at_the_same_time_share_a_commit(platform, raw, monkeypatch):
    """Those that wait while another one is stored are stored together."""
    raw.create("accounts", 1)
    append(raw, "accounts", 0, record(b"first"))
    file = platform.log._storages.get("first")._open[platform.log.timelines("accounts")[0].topic].file
    groups: list[int] = []
    commits = file._commits
    act = commits._act
    monkeypatch.setattr(commits, "_act", lambda group: groups.append(len(group)) or act(group))
    with ThreadPoolExecutor(8) as threads:
        with file._lock:
            working = [threads.submit(append, raw, "accounts", 0, record(b"%d" % at)) for at in range(8)]
            until(lambda: sum(groups) + len(commits._queue) == 8, "the appends that wait")
        places = [thread.result(20)[0] for thread in working]
    assert sorted(places) == [Position(1, offset) for offset in range(1, 9)]
    assert sum(groups) == 8
    assert len(groups) <= 2


def test_a_record_that_is_gone_is_a_gap(platform, raw):
    """Also if a whole timeline is gone. Reads after the gap work."""
    raw.create("accounts", 1)
    before, *_ = append(raw, "accounts", 0, record(b"0"))
    platform.log.admin.switch("accounts", "second")
    after, *_ = append(raw, "accounts", 0, record(b"1"))
    timeline = platform.log.timelines("accounts")[0]
    platform.log._storages.get("first").delete_topic(timeline.topic)
    with pytest.raises(Gap, match="removed before they were replicated") as raised:
        values(raw)
    assert (raised.value.code, raised.value.info["position"]) == ("gap", str(before))
    assert values(raw, before, until_=after) == [b"1"]


def test_an_unknown_outcome_is_an_error(platform, raw, monkeypatch):
    """The records may be stored, so it is neither a success nor a plain failure."""
    raw.create("accounts", 1)
    storage = platform.log._storages.get("first")
    unknown = {0: Placed([UNKNOWN], OutcomeUnknown("no answer"))}
    monkeypatch.setattr(storage, "try_append", lambda *_: unknown)
    with pytest.raises(OutcomeUnknown):
        append(raw, "accounts", 0, record(b"x"))


def test_a_watch_follows_a_switch(platform, raw):
    """The callback is called after appends in the timeline that is active then, until the watch ends."""
    raw.create("accounts", 1)
    called = threading.Event()
    stop = raw.watch("accounts", called.set)

    def is_called(number: int) -> None:
        until(called.is_set, "the first call")
        called.clear()
        append(raw, "accounts", 0, record(b"%d" % number))
        until(called.is_set, "a call after the append")

    is_called(1)
    platform.log.admin.switch("accounts", "second")
    is_called(2)
    stop()
