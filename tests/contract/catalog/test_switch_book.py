"""The contract of every catalog on switches and storages."""

from __future__ import annotations

import msgspec
import pytest
from catalog_place import FIRST, CatalogPlace, create, effect, switch_of

from strandline.errors import Conflict, NotFound
from strandline.log.catalog import Catalog, SwitchEffect
from strandline.log.model import CatalogEntry, StorageInfo, Switch
from strandline.log.storage.registry import KafkaConfiguration
from strandline.log.switching import State

OTHER = StorageInfo("other", "kafka", kafka_configuration=KafkaConfiguration("elsewhere:9092"))


def prepare(catalog: Catalog, entry: CatalogEntry, kind: str = "switch") -> Switch:
    switch = switch_of(entry, kind=kind)
    catalog.switches.begin(entry, switch)
    return switch


def again(catalog: Catalog, name: str = "orders") -> CatalogEntry:
    entry = catalog.get(name)
    assert entry is not None
    return entry


def test_a_begun_switch_is_seen_by_everybody(catalog, place: CatalogPlace):
    """Another connection reads the switch with its event type, by its token and among the undecided ones."""
    switch = prepare(catalog, create(catalog, "orders"))
    other = place.open()
    assert again(other).switch == switch
    assert other.switches.get(switch.token) == switch
    assert other.switches.undecided() == [switch]


@pytest.mark.parametrize("closes", [False, True])
def test_its_topic_is_doomed_when_it_is_aborted_and_not_before(catalog, clock, closes):
    """A sweep cannot delete the topic of an undecided switch at any time; the abort itself marks it."""
    entry = create(catalog, "orders")
    switch = prepare(catalog, entry)
    if closes:
        assert catalog.switches.close(switch.token)
    clock.advance(10**15)
    assert catalog.topics_to_delete() == []
    assert not catalog.claim_topic(switch.storage_id, switch.topic)
    assert catalog.switches.abort(switch.token)
    assert catalog.topics_to_delete() == [(switch.storage_id, switch.topic)]


def test_its_topic_is_never_doomed_when_it_is_done(catalog, clock):
    """The event type owns the topic after the commit."""
    entry = create(catalog, "orders")
    switch = prepare(catalog, entry)
    assert catalog.switches.close(switch.token)
    assert catalog.switches.commit(switch.token, effect(entry, switch))
    assert not catalog.switches.abort(switch.token)
    clock.advance(10**15)
    assert catalog.topics_to_delete() == []


def test_an_aborted_growth_dooms_nothing(catalog):
    """A growth uses the topic of the event type."""
    switch = prepare(catalog, create(catalog, "orders"), "grow")
    assert catalog.switches.abort(switch.token)
    assert catalog.topics_to_delete() == []


def test_one_undecided_switch_at_a_time(catalog):
    """A second switch is a Conflict until the first one is decided."""
    entry = create(catalog, "orders")
    first = prepare(catalog, entry)
    with pytest.raises(Conflict, match="under way"):
        prepare(catalog, entry)
    assert catalog.switches.abort(first.token)
    second = prepare(catalog, entry)
    assert again(catalog).switch == second
    old = catalog.switches.get(first.token)
    assert old is not None
    assert old.state is State.ABORTED


def test_a_switch_of_what_has_changed_is_refused(catalog):
    """A switch is a Conflict if the event type or its timelines have changed since the entry was read."""
    entry = create(catalog, "orders")
    catalog.update(entry, msgspec.structs.replace(entry.event_type, owning_application="x"))
    with pytest.raises(Conflict, match="has changed since"):
        prepare(catalog, entry)


def test_states_move_only_as_they_may(catalog):
    """preparing → closing → done; `aborted` and `done` are final."""
    entry = create(catalog, "orders")
    first = prepare(catalog, entry)
    assert not catalog.switches.commit(first.token, effect(entry, first))
    assert catalog.switches.abort(first.token)
    assert catalog.switches.abort(first.token), "abort is idempotent"
    assert not catalog.switches.close(first.token)
    assert not catalog.switches.commit(first.token, effect(entry, first))
    assert len(again(catalog).timelines) == 1
    second = prepare(catalog, entry)
    assert catalog.switches.close(second.token)
    assert not catalog.switches.close(second.token), "a switch closes only once"
    assert catalog.switches.commit(second.token, effect(entry, second))
    assert not catalog.switches.abort(second.token)
    assert not catalog.switches.commit(second.token, effect(entry, second))


def test_done_comes_with_its_effect(catalog):
    """After the commit the old timeline has its last offsets and the new one is active."""
    entry = create(catalog, "orders")
    switch = prepare(catalog, entry)
    catalog.switches.close(switch.token)
    catalog.switches.commit(switch.token, effect(entry, switch))
    old, new = again(catalog).timelines
    assert (old.latest_position, old.closed_at) == ({"0": 41}, "then")
    assert (new.order, new.topic, new.latest_position) == (2, switch.topic, None)
    assert catalog.switches.undecided() == []


def test_a_stale_definition_is_not_overwritten(catalog):
    """A commit is a Conflict and changes nothing if the definition changed during the switch."""
    entry = create(catalog, "orders", partitions=1)
    switch = prepare(catalog, entry, "grow")
    catalog.switches.close(switch.token)
    catalog.update(entry, msgspec.structs.replace(entry.event_type, owning_application="x"))
    grown = msgspec.structs.replace(entry.event_type, partitions=2)
    with pytest.raises(Conflict):
        catalog.switches.commit(switch.token, SwitchEffect(redefined=(entry.event_type, grown)))
    after = again(catalog)
    assert after.switch is not None
    assert (after.event_type.owning_application, after.switch.state) == ("x", State.CLOSING)


def test_deleting_an_event_type_takes_its_switches_along(catalog):
    """An initiator that returns finds no switch to advance."""
    entry = create(catalog, "orders")
    switch = prepare(catalog, entry)
    catalog.delete(entry)
    assert catalog.switches.get(switch.token) is None
    assert not catalog.switches.close(switch.token)
    assert catalog.switches.abort(switch.token), "abort of a deleted switch is idempotent"
    topics = {("default", entry.active.topic), (switch.storage_id, switch.topic)}
    assert {*catalog.topics_to_delete()} == topics


def test_storages_are_added_once(catalog):
    """A second storage of the same id is a Conflict."""
    catalog.storages.add(OTHER)
    with pytest.raises(Conflict, match="exists already"):
        catalog.storages.add(OTHER)
    assert [storage.id for storage in catalog.storages.list()] == ["default", "other"]


def test_exactly_one_storage_is_the_default(catalog):
    """Making a storage the default removes the mark from the previous one."""
    catalog.storages.add(OTHER)
    catalog.storages.set_default("other")
    assert [(storage.id, storage.default) for storage in catalog.storages.list()] == [
        ("default", False),
        ("other", True),
    ]
    for name in ("nowhere", "\0", "für"):
        with pytest.raises(NotFound):
            catalog.storages.set_default(name)


def test_a_storage_in_use_stays(catalog):
    """The default, a storage with a timeline and the target of a switch cannot be removed; others can."""
    with pytest.raises(Conflict, match="default"):
        catalog.storages.remove("default")
    entry = create(catalog, "orders")
    catalog.storages.add(OTHER)
    catalog.storages.set_default("other")
    with pytest.raises(Conflict, match="in use"):
        catalog.storages.remove("default")
    catalog.delete(entry)
    with pytest.raises(Conflict, match="in use"):
        catalog.storages.remove("default")  # its topic is not deleted yet
    for storage_id, topic in catalog.topics_to_delete():
        assert catalog.claim_topic(storage_id, topic)
        catalog.forget_topic(storage_id, topic)
    catalog.storages.remove("default")
    assert [storage.id for storage in catalog.storages.list()] == ["other"]
    with pytest.raises(NotFound):
        catalog.storages.remove("default")
    assert FIRST.id == "default"
