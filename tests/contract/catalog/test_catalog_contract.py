"""The contract of every catalog, as stated in `strandline/log/catalog/port.py`."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from catalog_place import FIRST, create, schema, timeline
from msgspec.structs import replace

from strandline.errors import Conflict, NotFound, Unavailable
from strandline.log.model import EventType, Options, Schema, Statistics

# -- event types


def test_an_unknown_name_is_none(catalog):
    """An unknown name is not an error: the caller decides."""
    for name in ("none", "", "\0", "a\0b", "für", "🎉", "'; --", "%s"):
        assert catalog.get(name) is None
    assert catalog.entries() == []


def test_a_created_event_type_comes_back_whole(catalog):
    """`get` returns the identity, the definition and the first timeline with every field unchanged."""
    definition = EventType(
        "orders.placed",
        owning_application="shop",
        category="business",
        partitions=4,
        partition_strategy="hash",
        partition_key_fields=("a", "b.c"),
        schema=Schema.json({"type": "object", "description": 'für "alle" 🎉'}),
        default_statistic=Statistics(read_parallelism=4, write_parallelism=4),
        options=Options(1000),
        annotations={"z": "1", "a": "2"},
        labels={"team": "x"},
    )
    first = timeline("orders.placed")
    entry_id = str(uuid.uuid4())
    catalog.mark_for_deletion("default", first.topic, 1)
    catalog.create(entry_id, definition, first)
    entry = catalog.get("orders.placed")
    assert (entry.id, entry.event_type, entry.timelines, entry.active) == (entry_id, definition, (first,), first)
    assert catalog.entries() == [entry]


def test_entries_come_by_name(catalog):
    """Entries are sorted by name, not by creation."""
    for name in ("b", "a.b", "c", "a"):
        create(catalog, name)
    assert [entry.event_type.name for entry in catalog.entries()] == ["a", "a.b", "b", "c"]


def test_a_name_is_taken_once(catalog):
    """The second creation is a Conflict and changes nothing; its topic stays marked for deletion."""
    entry = create(catalog, "a")
    late = timeline("a")
    catalog.mark_for_deletion("default", late.topic, 5)
    with pytest.raises(Conflict, match="'a'"):
        catalog.create(str(uuid.uuid4()), EventType("a", partitions=7), late)
    assert catalog.get("a") == entry
    assert catalog.topics_to_delete(5) == [("default", late.topic)]


def test_of_many_creators_one_wins(place):
    """Of concurrent creations over several connections, exactly one succeeds."""
    catalogs = [place.open() for _ in range(4)]

    def attempt(number: int) -> str:
        try:
            return create(catalogs[number % 4], "wanted").id
        except Conflict:
            return ""

    with ThreadPoolExecutor(8) as pool:
        winners = [found for found in pool.map(attempt, range(16)) if found]
    assert winners == [catalogs[0].get("wanted").id]
    assert len(catalogs[0].topics_to_delete(10**15)) == 15


def test_an_update_replaces_the_definition(catalog):
    """An update keeps the identity and the timelines."""
    entry = create(catalog, "a", labels={"k": "1"})
    changed = replace(entry.event_type, labels={"k": "2"})
    catalog.update(entry, changed)
    assert catalog.get("a") == replace(entry, event_type=changed)


def test_an_update_of_an_outdated_definition_is_refused(catalog):
    """An update of a definition that has changed since it was read is a Conflict and changes nothing."""
    entry = create(catalog, "a", labels={"k": "1"})
    first = replace(entry.event_type, labels={"k": "2"})
    catalog.update(entry, first)
    with pytest.raises(Conflict):
        catalog.update(entry, replace(entry.event_type, labels={"k": "3"}))
    assert catalog.get("a").event_type == first


def test_an_update_of_what_is_gone_or_made_anew_is_refused(catalog):
    """An update applies to the identity, not to the name."""
    entry = create(catalog, "a")
    catalog.delete(entry, 0)
    changed = replace(entry.event_type, labels={"k": "3"})
    with pytest.raises(Conflict):
        catalog.update(entry, changed)
    again = create(catalog, "a")
    with pytest.raises(Conflict):
        catalog.update(entry, changed)
    assert catalog.get("a") == again


def test_updates_at_once_do_not_overwrite_each_other(place):
    """Of several concurrent updates of the same definition, exactly one succeeds."""
    catalogs = [place.open() for _ in range(4)]
    entry = create(catalogs[0], "a")

    def attempt(number: int) -> bool:
        try:
            catalogs[number].update(entry, replace(entry.event_type, labels={"k": str(number)}))
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(attempt, range(4)))
    assert won.count(True) == 1
    assert catalogs[0].get("a").event_type.labels == {"k": str(won.index(True))}


def test_deleting_forgets_the_event_type_and_dooms_its_topics(catalog):
    """The topics of a deleted event type may be deleted from the given time on."""
    entry = create(catalog, "a")
    other = create(catalog, "b")
    catalog.delete(entry, 77)
    assert catalog.get("a") is None
    assert catalog.entries() == [other]
    assert catalog.topics_to_delete(76) == []
    assert catalog.topics_to_delete(77) == [("default", entry.active.topic)]


def test_deleting_what_is_gone_is_not_found(catalog):
    """A second delete neither deletes a new event type of the same name nor marks a topic."""
    entry = create(catalog, "a")
    catalog.delete(entry, 0)
    catalog.forget_topic("default", entry.active.topic)
    again = create(catalog, "a")
    with pytest.raises(NotFound, match="'a'"):
        catalog.delete(entry, 0)
    assert catalog.get("a") == again
    assert catalog.topics_to_delete(10**15) == []


def test_a_name_can_be_used_again_under_another_identity(catalog):
    """A new event type has no data of a deleted one of the same name."""
    entry = create(catalog, "a", labels={"old": "1"})
    catalog.update(entry, replace(entry.event_type, schema=schema("2.0.0")))
    catalog.delete(catalog.get("a"), 0)
    again = create(catalog, "a")
    assert again.id != entry.id
    assert [found.version for found in catalog.schemas(again)] == ["1.0.0"]


def test_schemas_come_newest_first(catalog):
    """All schemas the event type ever had are listed; updates of other fields add none."""
    entry = create(catalog, "a", schema=schema("1.0.0"))
    for version in ("1.0.1", "1.1.0", "2.0.0"):
        catalog.update(catalog.get("a"), replace(entry.event_type, schema=schema(version)))
    catalog.update(catalog.get("a"), replace(catalog.get("a").event_type, labels={"k": "1"}))
    assert [found.version for found in catalog.schemas(entry)] == ["2.0.0", "1.1.0", "1.0.1", "1.0.0"]
    assert catalog.schemas(entry)[0] == schema("2.0.0")


# -- version


def test_the_version_changes_with_every_change_of_anybody(place):
    """Changes of every connection change the version."""
    mine, other = place.open(), place.open()
    seen = [(mine.version(), other.version())]
    for catalog, act in (
        (mine, lambda c: create(c, "a")),
        (other, lambda c: create(c, "b")),
        (mine, lambda c: c.update(c.get("a"), replace(c.get("a").event_type, labels={"k": "1"}))),
        (other, lambda c: c.update(c.get("b"), replace(c.get("b").event_type, labels={"k": "1"}))),
        (mine, lambda c: c.delete(c.get("a"), 0)),
        (other, lambda c: c.delete(c.get("b"), 0)),
    ):
        act(catalog)
        now = (mine.version(), other.version())
        assert now[0] != seen[-1][0]
        assert now[1] != seen[-1][1]
        seen.append(now)
    assert (mine.version(), other.version()) == seen[-1]


def test_what_is_read_after_the_version_is_at_least_as_new(place):
    """A cache reads the version first, then the entry, so a new version always reveals a stale entry."""
    mine, other = place.open(), place.open()
    before = mine.version()
    create(other, "a")
    assert mine.version() != before
    assert mine.get("a") is not None


# -- topics marked for deletion


def test_an_announced_topic_is_doomed_after_its_time(catalog):
    """A marked topic may be deleted from the given time on; marking it again moves the time."""
    catalog.mark_for_deletion("default", "t", 100)
    assert catalog.topics_to_delete(99) == []
    assert catalog.topics_to_delete(100) == [("default", "t")]
    catalog.mark_for_deletion("default", "t", 50)
    assert catalog.topics_to_delete(50) == [("default", "t")]
    catalog.forget_topic("default", "t")
    assert catalog.topics_to_delete(10**15) == []


def test_a_topic_that_an_event_type_owns_is_never_doomed(catalog):
    """A mark before or after the creation never applies to an owned topic."""
    entry = create(catalog, "a")
    assert catalog.topics_to_delete(10**15) == []
    catalog.mark_for_deletion("default", entry.active.topic, 0)
    assert catalog.topics_to_delete(10**15) == []
    catalog.delete(entry, 5)
    assert catalog.topics_to_delete(5) == [("default", entry.active.topic)]


def test_creating_over_a_swept_topic_is_refused(catalog):
    """If a sweep has deleted the topic, the event type is not recorded."""
    late = timeline("a")
    catalog.mark_for_deletion("default", late.topic, 0)
    assert catalog.topics_to_delete(0) == [("default", late.topic)]
    catalog.forget_topic("default", late.topic)
    with pytest.raises(Conflict):
        catalog.create(str(uuid.uuid4()), EventType("a"), late)
    assert catalog.get("a") is None


def test_creating_over_a_topic_that_was_never_announced_is_refused(catalog):
    """A crash would leave an unmarked topic behind."""
    with pytest.raises(Conflict):
        catalog.create(str(uuid.uuid4()), EventType("a"), timeline("a"))
    assert catalog.entries() == []


def test_forgetting_what_is_not_doomed_is_harmless(catalog):
    """`forget_topic` is idempotent, because a sweep may be repeated."""
    catalog.forget_topic("default", "none")


# -- storages


def test_the_first_storage_is_the_default(catalog):
    """Exactly one storage is the default."""
    assert catalog.storages.list() == [replace(FIRST, default=True)]


def test_opening_again_changes_nothing(place, catalog):
    """A second open keeps the storages and the event types."""
    entry = create(catalog, "a")
    place.close()
    again = place.open()
    assert [info.id for info in again.storages.list()] == ["default"]
    assert again.get("a") == entry


# -- threads and closing


def test_threads_share_a_catalog(catalog):
    """Many threads create, update, read and delete at once; every operation is atomic."""

    def live(number: int) -> None:
        name = f"e{number}"
        entry = create(catalog, name)
        for step in range(5):
            entry = catalog.get(name)
            catalog.update(entry, replace(entry.event_type, labels={"k": str(step)}))
            assert all(found.timelines for found in catalog.entries())
        if number % 2:
            catalog.delete(catalog.get(name), 0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(live, range(16)))
    assert sorted(entry.event_type.name for entry in catalog.entries()) == sorted(f"e{n}" for n in range(0, 16, 2))
    assert len(catalog.topics_to_delete(0)) == 8


def test_a_closed_catalog_is_unavailable(place, catalog):
    """Reads and writes are UNAVAILABLE after close; close is idempotent."""
    entry = create(catalog, "a")
    place.close()
    place.close()
    for act in (
        catalog.version,
        lambda: catalog.get("a"),
        catalog.entries,
        lambda: catalog.update(entry, entry.event_type),
        lambda: catalog.delete(entry, 0),
        lambda: catalog.schemas(entry),
        lambda: catalog.mark_for_deletion("default", "t", 0),
        lambda: catalog.topics_to_delete(0),
        lambda: catalog.forget_topic("default", "t"),
        catalog.storages.list,
        catalog.switches.undecided,
    ):
        with pytest.raises(Unavailable):
            act()
