"""The contract of every catalog on removed timelines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from catalog_place import CatalogPlace, create, effect, switch_of

from strandline.errors import Conflict
from strandline.log.catalog import Catalog, SwitchEffect
from strandline.log.model import CatalogEntry, StorageInfo, Timeline
from strandline.log.storage.registry import KafkaConfiguration

OTHER = StorageInfo("other", "kafka", kafka_configuration=KafkaConfiguration("elsewhere:9092"))


def switched(catalog: Catalog, name: str = "orders") -> CatalogEntry:
    """An event type that was switched from the first storage to another one."""
    entry = create(catalog, name)
    if "other" not in {storage.id for storage in catalog.storages.list()}:
        catalog.storages.add(OTHER)
    switch = msgspec.structs.replace(switch_of(entry), storage_id="other")
    catalog.switches.begin(entry, switch)
    assert catalog.switches.close(switch.token)
    done = effect(entry, switch)
    moved = msgspec.structs.replace(done.opened, storage_id="other")
    assert catalog.switches.commit(switch.token, SwitchEffect(done.closed, moved))
    return again(catalog, name)


def again(catalog: Catalog, name: str = "orders") -> CatalogEntry:
    entry = catalog.get(name)
    assert entry is not None
    return entry


def marked(timeline: Timeline) -> Timeline:
    return msgspec.structs.replace(timeline, cleaned_up_at="now")


def test_a_removed_timeline_stays_as_a_row(catalog, place: CatalogPlace):
    """Every connection reads the row with its order and last offsets, and the version has changed."""
    old, new = switched(catalog).timelines
    other = place.open()
    before = other.version()
    assert catalog.remove_timeline(marked(old), 5_000)
    assert other.version() != before
    assert again(other).timelines == (marked(old), new)
    assert other.entries() == [again(other)]


def deleted(catalog: Catalog, old: Timeline) -> None:
    """Claim and forget the topic, as a sweep does."""
    assert catalog.claim_topic(old.storage_id, old.topic)
    catalog.forget_topic(old.storage_id, old.topic)


def test_its_topic_is_doomed_after_the_time_given(catalog, clock):
    """The topic of a removed timeline may be deleted after the delay, until it is forgotten."""
    old, _ = switched(catalog).timelines
    catalog.remove_timeline(marked(old), 5_000)
    clock.advance(4_999)
    assert catalog.topics_to_delete() == []
    clock.advance(1)
    assert catalog.topics_to_delete() == [(old.storage_id, old.topic)]
    deleted(catalog, old)
    clock.advance(10**15)
    assert catalog.topics_to_delete() == []


def test_of_many_that_remove_it_one_does(place: CatalogPlace):
    """Of concurrent removals exactly one succeeds; the others change neither the row nor the time."""
    catalogs = [place.open() for _ in range(4)]
    old, _ = switched(catalogs[0]).timelines

    def attempt(number: int) -> bool:
        mine = msgspec.structs.replace(old, cleaned_up_at=str(number))
        return catalogs[number % 4].remove_timeline(mine, number)

    with ThreadPoolExecutor(8) as pool:
        done = [number for number, first in enumerate(pool.map(attempt, range(16))) if first]
    assert [again(catalogs[0]).timelines[0].cleaned_up_at] == [str(number) for number in done]
    place.clock.advance(done[0] - 1)
    assert catalogs[0].topics_to_delete() == []
    place.clock.advance(1)
    assert catalogs[0].topics_to_delete() == [(old.storage_id, old.topic)]


def test_nothing_is_left_to_remove_of_a_deleted_event_type(catalog):
    """The deletion of the event type marked its topics for deletion at once."""
    entry = switched(catalog)
    catalog.delete(entry)
    assert not catalog.remove_timeline(marked(entry.timelines[0]), 5_000)
    assert sorted(catalog.topics_to_delete()) == sorted((t.storage_id, t.topic) for t in entry.timelines)


def test_deleting_the_event_type_does_not_hurry_a_removed_topic(catalog, clock):
    """The topic keeps its own time of deletion, and a deleted topic is not marked again."""
    entry = switched(catalog)
    old, new = entry.timelines
    catalog.remove_timeline(marked(old), 5_000)
    catalog.delete(again(catalog))
    assert catalog.topics_to_delete() == [(new.storage_id, new.topic)]
    clock.advance(5_000)
    assert len(catalog.topics_to_delete()) == 2
    second = switched(catalog, "visits")
    catalog.remove_timeline(marked(second.timelines[0]), 1)
    deleted(catalog, second.timelines[0])
    catalog.delete(again(catalog, "visits"))
    assert (second.timelines[0].storage_id, second.timelines[0].topic) not in catalog.topics_to_delete()


def test_a_storage_is_free_once_its_timelines_and_their_topics_are_gone(catalog):
    """A storage without live timelines and marked topics can be removed; the rows still name it."""
    old, new = switched(catalog).timelines
    catalog.storages.set_default("other")
    with pytest.raises(Conflict, match="in use"):
        catalog.storages.remove("default")
    catalog.remove_timeline(marked(old), 5_000)
    with pytest.raises(Conflict, match="in use"):
        catalog.storages.remove("default")  # its topic is not deleted yet
    deleted(catalog, old)
    catalog.storages.remove("default")
    assert again(catalog).timelines == (marked(old), new)
    with pytest.raises(Conflict):
        catalog.storages.remove("other")


def test_the_next_switch_begins_with_what_is_left(catalog):
    """A removal changes the timelines, so a switch from an entry read before it is a Conflict."""
    entry = switched(catalog)
    catalog.remove_timeline(marked(entry.timelines[0]), 5_000)
    with pytest.raises(Conflict, match="has changed since"):
        catalog.switches.begin(entry, switch_of(entry))
    catalog.switches.begin(again(catalog), switch_of(again(catalog)))
