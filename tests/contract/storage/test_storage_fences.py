"""The contract of storages with fenced appends, as stated in `FencingStorage`."""

from __future__ import annotations

import os
import signal

import pytest
from storage_place import Place, append, read, records, values

from services import is_stopped, until
from strandline.errors import Fenced, NotFound, Sealed, Unavailable
from strandline.log.records import NewRecords
from strandline.log.storage import FAILED, Fence, SealableStorage

FIRST, SECOND = Fence("relay", 1), Fence("relay", 2)


@pytest.fixture(params=["sqlite", "kafka"])
def place(request, tmp_path):
    if request.param == "sqlite":
        address = f"sqlite:{tmp_path / 'topics'}"
    else:
        address = f"kafka:{request.getfixturevalue('kafka').bootstrap_servers}"
    made = Place(address)
    yield made
    made.close()


def fenced(storage, topic, fence, *texts, partition=0):
    return storage.append_fenced(topic, {partition: records(*texts)}, fence).result(30)


def test_the_holder_appends_all_records_of_all_partitions(storage, topic):
    """With timestamps, keys and headers; offsets grow, and other appends go on beside it."""
    storage.raise_fence(topic, FIRST)
    append(storage, topic, {0: [b"plain"]})
    own = NewRecords(5, [b"a", b"b"], [b"k", None], [[("from", b"here")], None])
    placed = storage.append_fenced(topic, {0: own, 1: records(b"x")}, FIRST).result(30)
    append(storage, topic, {0: [b"last"]})
    assert placed[0].complete
    assert placed[1].complete
    found = read(storage, topic, 0)
    assert [value for _, value in found] == [b"plain", b"a", b"b", b"last"]
    assert [offset for offset, value in found if value in {b"a", b"b"}] == [*placed[0].offsets]
    batch = storage.read(topic, 0, placed[0].offsets[0], max_records=2, max_bytes=1 << 20).to_pylist()
    assert [(row["timestamp"], row["key"]) for row in batch] == [(5, b"k"), (5, None)]
    assert batch[0]["headers"] == [{"key": "from", "value": b"here"}]
    assert values(storage, topic, 1) == [b"x"]


def test_an_old_holder_is_refused_after_the_raise(place, storage, topic):
    """Also in another process, and for as long as the topic exists."""
    storage.raise_fence(topic, FIRST)
    fenced(storage, topic, FIRST, b"before")
    other = place.open()
    other.raise_fence(topic, SECOND)
    for _ in range(2):
        with pytest.raises(Fenced):
            fenced(storage, topic, FIRST, b"late")
    fenced(other, topic, SECOND, b"after")
    assert values(storage, topic, 0) == [b"before", b"after"]


def test_a_fence_that_nobody_raised_allows_nothing(storage, topic):
    """An append does not raise the fence by itself: its caller has to check the epoch first."""
    with pytest.raises(Fenced):
        fenced(storage, topic, FIRST, b"a")
    storage.raise_fence(topic, FIRST)
    with pytest.raises(Fenced):
        fenced(storage, topic, SECOND, b"a")
    assert values(storage, topic, 0) == []


def test_a_lower_epoch_cannot_be_raised_again(storage, topic):
    storage.raise_fence(topic, SECOND)
    with pytest.raises(Fenced):
        storage.raise_fence(topic, FIRST)
    storage.raise_fence(topic, SECOND)
    fenced(storage, topic, SECOND, b"a")
    assert values(storage, topic, 0) == [b"a"]


def test_fences_are_apart_by_name_and_topic(storage, topic):
    """Two relays with the same target do not disturb each other."""
    other = Fence("another", 1)
    storage.raise_fence(topic, FIRST)
    storage.raise_fence(topic, other)
    storage.create_topic(f"{topic}.2", 1, None)
    storage.raise_fence(f"{topic}.2", SECOND)
    fenced(storage, topic, FIRST, b"a")
    fenced(storage, topic, other, b"b")
    fenced(storage, f"{topic}.2", SECOND, b"c")
    assert values(storage, topic, 0) == [b"a", b"b"]


def test_a_holder_that_was_paused_in_the_middle_of_an_append(place, storage, topic):
    """After the raise its append is refused, and its records never become visible."""
    append(storage, topic, {0: [b"before"]})
    with place.start("fenced", topic, 1, "late", failpoint="fenced.append:stop") as old:
        assert old.stdout.readline() == "raised\n"
        until(lambda: is_stopped(old.pid), "the pause of the old holder")
        storage.raise_fence(topic, SECOND)
        fenced(storage, topic, SECOND, b"after")
        os.kill(old.pid, signal.SIGCONT)
        answer = old.stdout.readline().strip()
    assert answer in {"Fenced", "OutcomeUnknown"}
    append(storage, topic, {0: [b"last"]})
    assert values(storage, topic, 0) == [b"before", b"after", b"last"]


def test_a_holder_that_was_killed_in_the_middle_of_an_append(place, storage, topic):
    """The raise ends what the dead process has begun: readers do not wait for it."""
    with place.start("fenced", topic, 1, "lost", failpoint="fenced.append:kill") as old:
        assert old.stdout.readline() == "raised\n"
        assert old.wait(60) == -signal.SIGKILL
    append(storage, topic, {0: [b"plain"]})
    storage.raise_fence(topic, SECOND)
    assert values(storage, topic, 0) == [b"plain"]
    fenced(storage, topic, SECOND, b"after")
    assert values(storage, topic, 0) == [b"plain", b"after"]


def test_a_partition_that_does_not_exist(storage, topic):
    """Its records are failed; the others are stored."""
    storage.raise_fence(topic, FIRST)
    placed = storage.append_fenced(topic, {0: records(b"a"), 99: records(b"lost")}, FIRST).result(30)
    assert ([*placed[99].offsets], type(placed[99].error)) == ([FAILED], NotFound)
    assert values(storage, topic, 0) == [b"a"]


def test_missing_topics_and_closed_storages(storage, topic):
    with pytest.raises(NotFound):
        storage.raise_fence("none", FIRST)
    storage.raise_fence(topic, FIRST)
    storage.close()
    with pytest.raises(Unavailable):
        storage.raise_fence(topic, FIRST)
    with pytest.raises(Unavailable):
        fenced(storage, topic, FIRST, b"a")


def test_a_sealed_topic_refuses_the_holder_too(storage, topic):
    if not isinstance(storage, SealableStorage):
        pytest.skip("the storage cannot seal topics")
    storage.raise_fence(topic, FIRST)
    storage.seal(topic, "switch-1")
    with pytest.raises(Sealed):
        fenced(storage, topic, FIRST, b"a")
    storage.unseal(topic, "switch-1")
    fenced(storage, topic, FIRST, b"b")
    assert values(storage, topic, 0) == [b"b"]
