"""The contract of storages that can seal topics, as stated in `SealableStorage`."""

from __future__ import annotations

import pytest
from storage_place import Place, append, records, store_as, values

from strandline.errors import NotFound, Sealed, Unavailable
from strandline.log.records import NewRecords
from strandline.log.storage import Placed, SealableStorage


@pytest.fixture(params=["sqlite", "sqlite, compacting"])
def place(request, tmp_path, monkeypatch):
    kind, _, form = request.param.partition(", ")
    store_as(form, monkeypatch)
    made = Place(f"{kind}:{tmp_path / 'topics'}")
    yield made
    made.close()


def test_a_sealed_topic_refuses_appends_by_name(storage, topic):
    """An append to a sealed topic is refused with the token and stores nothing, until the unseal."""
    append(storage, topic, {0: [b"before"]})
    storage.seal(topic, "switch-1")
    with pytest.raises(Sealed) as caught:
        append(storage, topic, {0: [b"refused"]})
    assert caught.value.token == "switch-1"
    storage.unseal(topic, "switch-1")
    append(storage, topic, {0: [b"after"]})
    assert values(storage, topic, 0) == [b"before", b"after"]


def test_sealing_again_with_the_same_token_is_harmless(storage, topic):
    """`seal` is idempotent: one unseal removes the seal."""
    storage.seal(topic, "switch-1")
    storage.seal(topic, "switch-1")
    storage.unseal(topic, "switch-1")
    append(storage, topic, {0: [b"a"]})


def test_a_seal_belongs_to_its_token(storage, topic):
    """Another token can neither seal nor unseal."""
    storage.seal(topic, "switch-1")
    with pytest.raises(Sealed) as caught:
        storage.seal(topic, "switch-2")
    assert caught.value.token == "switch-1"
    storage.unseal(topic, "switch-2")
    with pytest.raises(Sealed):
        append(storage, topic, {0: [b"a"]})


def test_unsealing_without_a_seal_does_nothing(storage, topic):
    """An unseal without a seal has no effect."""
    storage.unseal(topic, "switch-1")
    append(storage, topic, {0: [b"a"]})


def test_a_seal_holds_after_reopening_and_for_other_processes(place, storage, topic):
    """The seal is stored in the topic."""
    assert place.run("seal", topic, "switch-1") == ["sealed"]
    with pytest.raises(Sealed):
        append(storage, topic, {0: [b"a"]})
    storage.close()
    again = place.open()
    with pytest.raises(Sealed) as caught:
        append(again, topic, {0: [b"a"]})
    assert caught.value.token == "switch-1"
    again.unseal(topic, "switch-1")
    append(again, topic, {0: [b"a"]})


def test_what_was_placed_before_a_seal_is_below_the_bounds_after_it(storage, topic):
    """An append that races with a seal is stored within the bounds or refused."""
    started = [storage.append(topic, {0: records(b"%d" % number)}) for number in range(200)]
    storage.seal(topic, "switch-1")
    last = storage.bounds(topic)[0].last
    for future in started:
        error = future.exception(30)
        assert error is None or isinstance(error, Sealed)
        if error is None:
            assert future.result()[0].offsets[0] <= last
    assert storage.bounds(topic)[0].last == last


def test_a_sealed_topic_can_be_read(storage, topic):
    """A seal refuses only appends."""
    append(storage, topic, {0: [b"a"]})
    storage.seal(topic, "switch-1")
    assert values(storage, topic, 0) == [b"a"]


@pytest.mark.parametrize("verb", ["seal", "unseal"])
def test_only_topics_of_an_open_storage_have_seals(storage, topic, verb):
    """A missing topic is NotFound, and a closed storage is Unavailable."""
    with pytest.raises(NotFound):
        getattr(storage, verb)("none", "t")
    storage.close()
    with pytest.raises(Unavailable):
        getattr(storage, verb)(topic, "t")


def append_at_once(storage: SealableStorage, topic: str, batches: dict[int, NewRecords]) -> dict[int, Placed]:
    while (placed := storage.try_append(topic, batches)) is None:
        pass  # the compaction holds the lock of the topic
    return placed


def test_an_append_at_once_is_an_append(place, storage, topic):
    """It continues the offsets, also after appends of another process, and readers see it."""
    assert [*append_at_once(storage, topic, {0: records(b"a"), 1: records(b"x")})[0].offsets] == [0]
    append(storage, topic, {0: [b"b"]})
    append(place.open(), topic, {0: [b"c", b"d"]})
    placed = append_at_once(storage, topic, {0: records(b"e"), 1: records(), 99: records(b"lost")})
    assert [*placed[0].offsets] == [4]
    assert [*placed[1].offsets] == []
    assert isinstance(placed[99].error, NotFound)
    assert values(storage, topic, 0) == [b"a", b"b", b"c", b"d", b"e"]
    assert values(storage, topic, 1) == [b"x"]


def test_an_append_at_once_is_refused_like_any_other(place, storage, topic):
    """By a seal, after a close, and if the topic does not exist."""
    storage.seal(topic, "switch-1")
    with pytest.raises(Sealed) as caught:
        append_at_once(storage, topic, {0: records(b"refused")})
    assert caught.value.token == "switch-1"
    with pytest.raises(NotFound):
        storage.try_append("missing", {0: records(b"lost")})
    closed = place.open()
    closed.close()
    with pytest.raises(Unavailable):
        closed.try_append(topic, {0: records(b"late")})
