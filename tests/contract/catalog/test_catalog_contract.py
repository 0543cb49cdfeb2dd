"""The contract of every catalog, as stated in `strandline/log/catalog/port.py`."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from catalog_place import FIRST, create, effect, schema, switch_of, timeline
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
    catalog.mark_for_deletion("default", late.topic)
    with pytest.raises(Conflict, match="'a'"):
        catalog.create(str(uuid.uuid4()), EventType("a", partitions=7), late)
    assert catalog.get("a") == entry
    assert catalog.topics_to_delete() == [("default", late.topic)]


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
    place.clock.advance(10**15)
    assert len(catalogs[0].topics_to_delete()) == 15


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
    catalog.delete(entry)
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
    """The topics of a deleted event type may be deleted at once."""
    entry = create(catalog, "a")
    other = create(catalog, "b")
    assert catalog.topics_to_delete() == []
    catalog.delete(entry)
    assert catalog.get("a") is None
    assert catalog.entries() == [other]
    assert catalog.topics_to_delete() == [("default", entry.active.topic)]


def test_deleting_what_is_gone_is_not_found(catalog, clock):
    """A second delete neither deletes a new event type of the same name nor marks a topic."""
    entry = create(catalog, "a")
    catalog.delete(entry)
    assert catalog.claim_topic("default", entry.active.topic)
    catalog.forget_topic("default", entry.active.topic)
    again = create(catalog, "a")
    with pytest.raises(NotFound, match="'a'"):
        catalog.delete(entry)
    assert catalog.get("a") == again
    clock.advance(10**15)
    assert catalog.topics_to_delete() == []


def test_a_name_can_be_used_again_under_another_identity(catalog):
    """A new event type has no data of a deleted one of the same name."""
    entry = create(catalog, "a", labels={"old": "1"})
    catalog.update(entry, replace(entry.event_type, schema=schema("2.0.0")))
    catalog.delete(catalog.get("a"))
    again = create(catalog, "a")
    assert again.id != entry.id
    assert [found.version for found in catalog.schemas(again)] == ["1.0.0"]


def test_the_orders_of_a_name_are_never_used_again(catalog, place):
    """The orders of a new event type follow those of a deleted one of the same name; other names start with 1."""
    first = create(catalog, "a")
    switch = switch_of(first)
    catalog.switches.begin(first, switch)
    catalog.switches.close(switch.token)
    assert catalog.switches.commit(switch.token, effect(first, switch))
    catalog.delete(first)
    second = create(place.open(), "a")
    assert [found.order for found in second.timelines] == [3]
    catalog.delete(second)
    assert create(catalog, "a").active.order == 4
    assert create(catalog, "b").active.order == 1


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
        (mine, lambda c: c.delete(c.get("a"))),
        (other, lambda c: c.delete(c.get("b"))),
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


def test_an_announced_topic_is_doomed_after_its_time(catalog, clock):
    """A marked topic may be deleted after the delay; marking it again starts a new delay."""
    catalog.mark_for_deletion("default", "t", 100)
    clock.advance(99)
    assert catalog.topics_to_delete() == []
    clock.advance(1)
    assert catalog.topics_to_delete() == [("default", "t")]
    catalog.mark_for_deletion("default", "t", 50)
    assert catalog.topics_to_delete() == []
    clock.advance(50)
    assert catalog.topics_to_delete() == [("default", "t")]


def test_a_claimed_topic_is_listed_until_it_is_forgotten(catalog):
    """If a process crashes after its claim, another process can claim and delete the topic."""
    catalog.mark_for_deletion("default", "t")
    for _ in range(2):
        assert catalog.claim_topic("default", "t")
        assert catalog.topics_to_delete() == [("default", "t")]
    catalog.forget_topic("default", "t")
    assert catalog.topics_to_delete() == []
    assert not catalog.claim_topic("default", "t")


def test_a_topic_that_is_marked_again_after_its_claim_is_not_forgotten(catalog):
    """Such a topic may have been created after the deletion, so its mark stays."""
    catalog.mark_for_deletion("default", "t")
    assert catalog.claim_topic("default", "t")
    catalog.mark_for_deletion("default", "t")
    catalog.forget_topic("default", "t")
    assert catalog.topics_to_delete() == [("default", "t")]


def test_a_topic_that_an_event_type_owns_is_never_doomed(catalog, clock):
    """A mark before or after the creation never applies to an owned topic."""
    entry = create(catalog, "a")
    clock.advance(10**15)
    assert catalog.topics_to_delete() == []
    catalog.mark_for_deletion("default", entry.active.topic)
    assert catalog.topics_to_delete() == []
    assert not catalog.claim_topic("default", entry.active.topic)
    catalog.delete(entry)
    assert catalog.topics_to_delete() == [("default", entry.active.topic)]


def test_a_topic_that_got_an_owner_after_it_was_listed_cannot_be_claimed(catalog):
    """The claim checks the owner again, because the event type may have been created after the list was read."""
    late = timeline("a")
    catalog.mark_for_deletion("default", late.topic)
    assert catalog.topics_to_delete() == [("default", late.topic)]
    catalog.create(str(uuid.uuid4()), EventType("a"), late)
    assert not catalog.claim_topic("default", late.topic)


@pytest.mark.parametrize("forgotten", [False, True])
def test_creating_over_a_swept_topic_is_refused(catalog, forgotten):
    """If a sweep has claimed the topic, the event type is not recorded."""
    late = timeline("a")
    catalog.mark_for_deletion("default", late.topic)
    assert catalog.claim_topic("default", late.topic)
    if forgotten:
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
            catalog.delete(catalog.get(name))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(live, range(16)))
    assert sorted(entry.event_type.name for entry in catalog.entries()) == sorted(f"e{n}" for n in range(0, 16, 2))
    assert len(catalog.topics_to_delete()) == 8


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
        lambda: catalog.delete(entry),
        lambda: catalog.schemas(entry),
        lambda: catalog.mark_for_deletion("default", "t"),
        catalog.topics_to_delete,
        lambda: catalog.claim_topic("default", "t"),
        lambda: catalog.forget_topic("default", "t"),
        catalog.storages.list,
        catalog.switches.undecided,
    ):
        with pytest.raises(Unavailable):
            act()
