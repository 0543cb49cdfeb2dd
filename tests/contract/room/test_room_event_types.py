"""Event types, schemas, timelines and storages, in process and over HTTP."""

from __future__ import annotations

import msgspec
import pytest

from strandline import EventType, Schema
from strandline.errors import Conflict, Invalid, NotFound
from strandline.log import Log, Options

replace = msgspec.structs.replace


def test_a_created_event_type_comes_back_complete(log: Log, name: str):
    """`create` and `get` return the same definition, with the defaults filled in."""
    created = log.create(EventType(name, partitions=4, owning_application="shop", labels={"team": "ö"}))
    assert created.partitions == 4
    assert created.options.retention_time == 172_800_000
    assert created.created_at == created.updated_at is not None
    assert created.schema.version == "1.0.0"
    assert log.get(name) == created
    assert created in log.event_types()


def test_event_types_are_listed_by_name(log: Log, name: str):
    """The list is sorted by name, not by creation."""
    for suffix in ("b", "a"):
        log.create(EventType(f"{name}.{suffix}"))
    names = [kind.name for kind in log.event_types()]
    assert names == sorted(names)
    assert {f"{name}.a", f"{name}.b"} <= set(names)


def test_a_name_is_taken_once(log: Log, orders: str):
    """A second create of the same name is a Conflict and changes nothing."""
    before = log.get(orders)
    with pytest.raises(Conflict):
        log.create(EventType(orders, partitions=9))
    assert log.get(orders) == before


@pytest.mark.parametrize(
    "broken",
    [
        EventType("no spaces"),
        EventType("../up"),
        EventType("x", category="other"),  # type: ignore[arg-type]
        EventType("x", partitions=0),
        EventType("x", partitions=1_000_000),
        EventType("x", partition_strategy="hash"),
        EventType("x", schema=Schema(schema="{")),
        EventType("x", schema=Schema(schema='{"type": "nonsense"}')),
    ],
)
def test_a_broken_definition_is_invalid(log: Log, broken: EventType):
    """A definition that breaks a rule is refused, and nothing is created."""
    with pytest.raises(Invalid):
        log.create(broken)
    assert broken.name not in [kind.name for kind in log.event_types()]


@pytest.mark.parametrize("absent", ["absent", "..", "a/b", "", "a b", "ä", "x" * 300, "event-types?x=1"])
def test_an_unknown_name_is_not_found_by_every_verb(log: Log, absent: str):
    """An unknown name is NotFound, also if it has special characters."""
    for verb in (log.get, log.delete, log.schemas, log.partitions, log.timelines, log.read):
        with pytest.raises(NotFound):
            verb(absent)
    with pytest.raises(NotFound):
        log.publish(absent, [{}])
    with pytest.raises(NotFound):
        log.update(EventType(absent))
    for verb in (log.distances, log.shift, log.lag):
        with pytest.raises(NotFound):
            verb(absent, [])


def test_an_update_changes_what_may_change(log: Log, orders: str):
    """An update changes the owner and the retention and keeps the other fields."""
    before = log.get(orders)
    asked = replace(before, owning_application="billing", options=Options(3_600_000))
    updated = log.update(asked)
    assert updated.owning_application == "billing"
    assert updated.options.retention_time == 3_600_000
    assert updated.partition_key_fields == ("id",)
    assert log.get(orders) == updated


def test_an_update_cannot_change_how_events_are_spread(log: Log, orders: str):
    """Readers rely on the partition strategy."""
    before = log.get(orders)
    with pytest.raises(Invalid, match="partition_strategy"):
        log.update(replace(before, partition_strategy="random"))
    assert log.get(orders) == before


def test_schemas_are_kept_newest_first(log: Log, name: str):
    """All schemas of an event type stay readable, also if they do not fit on one page."""
    kind = log.create(EventType(name, compatibility_mode="none"))
    for number in range(25):
        properties = {f"field{n}": {"type": "string"} for n in range(number + 1)}
        kind = log.update(replace(kind, schema=Schema.json({"properties": properties})))
    found = log.schemas(name)
    assert len(found) == 26
    assert found[0] == kind.schema
    assert found[-1].schema == "{}"
    assert len({schema.version for schema in found}) == 26


def test_a_deleted_event_type_is_gone_with_its_events(log: Log, orders: str):
    """After a deletion the name is free, and a new event type of that name is empty."""
    log.publish(orders, [{"id": "1"}]).raise_for_failed()
    log.delete(orders)
    with pytest.raises(NotFound):
        log.get(orders)
    with pytest.raises(NotFound):
        log.delete(orders)
    log.create(EventType(orders))
    assert list(log.read(orders)) == []


def test_a_new_event_type_has_one_open_timeline(log: Log, orders: str):
    """A new event type has one timeline, on the default storage."""
    (default,) = [storage for storage in log.storages() if storage.default]
    (timeline,) = log.timelines(orders)
    assert (timeline.order, timeline.event_type) == (1, orders)
    assert timeline.storage_id == default.id
    assert timeline.latest_position is None
