"""Event type definitions: defaults, what is refused, and what may change."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from strandline.errors import Invalid
from strandline.log import definitions
from strandline.log.model import EventType, Options, Schema, Statistics
from strandline.log.settings import LogSettings

SETTINGS = LogSettings(max_partitions=50, retention_ms=1234)
THEN_MS, NOW_MS = 1_714_564_800_000, 1_714_564_900_000
THEN, NOW = "2024-05-01T12:00:00.000Z", "2024-05-01T12:01:40.000Z"
STRING = Schema.json({"properties": {"a": {"type": "string"}}})


def new(**definition: object) -> EventType:
    return definitions.new(EventType(**{"name": "orders", **definition}), SETTINGS, THEN_MS)


def changed(old: EventType, **changes: object) -> EventType:
    return definitions.changed(old, replace(old, **changes), SETTINGS, NOW_MS)


def test_a_new_definition_is_completed():
    """Partitions, retention, schema version and times are added; given values are kept."""
    made = new(owning_application="shop", labels={"a": "b"}, schema=Schema(schema="{}", version="7.7.7"))
    assert (made.partitions, made.default_statistic) == (1, Statistics(read_parallelism=1, write_parallelism=1))
    assert made.options.retention_time == 1234
    assert made.schema == Schema(schema="{}", version="1.0.0", created_at=THEN)
    assert (made.created_at, made.updated_at) == (THEN, THEN)
    assert (made.owning_application, made.labels) == ("shop", {"a": "b"})


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({}, 1),
        ({"partitions": 7}, 7),
        ({"default_statistic": Statistics(read_parallelism=3, write_parallelism=5)}, 5),
        ({"default_statistic": Statistics(read_parallelism=0, write_parallelism=0)}, 1),
        ({"partitions": 2, "default_statistic": Statistics(read_parallelism=9)}, 2),
    ],
)
def test_the_partition_count_comes_from_either_field(asked, count):
    """Our field wins over Nakadi's."""
    made = new(**asked)
    assert made.partition_count == made.partitions == count
    assert made.default_statistic.read_parallelism == count


@pytest.mark.parametrize(("category", "strategies"), [("undefined", 0), ("business", 1), ("data", 1)])
def test_enrichment_follows_the_category(category, strategies):
    """Event types with metadata have the enrichment strategy."""
    assert len(new(category=category).enrichment_strategies) == strategies


@pytest.mark.parametrize(
    "asked",
    [
        {"name": ""},
        {"name": "1a"},
        {"name": ".a"},
        {"name": "a."},
        {"name": "a..b"},
        {"name": "a/b"},
        {"name": "../a"},
        {"name": "a b"},
        {"name": "ä"},
        {"name": "a\n"},
        {"name": "a" * 256},
        {"category": "other"},
        {"partitions": 0},
        {"partitions": -1},
        {"partitions": 51},
        {"partitions": True},
        {"default_statistic": Statistics(read_parallelism=51)},
        {"partition_strategy": "hash"},
        {"partition_strategy": "hash", "partition_key_fields": ()},
        {"partition_strategy": "other"},
        {"compatibility_mode": "other"},
        {"cleanup_policy": "compact"},
        {"enrichment_strategies": ("metadata_enrichment",)},
        {"options": Options(0)},
        {"options": Options(-5)},
        {"schema": Schema(schema="nope")},
        {"schema": Schema(schema='{"type":"nothing"}')},
        {"labels": {"a": 1}},
    ],
)
def test_what_cannot_be_is_refused(asked):
    """Invalid names, numbers, strategies and schemas are refused, also in objects that Python code built."""
    with pytest.raises(Invalid):
        new(**asked)


@pytest.mark.parametrize("name", ["a", "A-b_9", "shop.orders", "a.1", "a" * 200])
def test_good_names_are_accepted(name):
    """A name has letters, digits, dashes, underscores, and dots between parts."""
    assert new(name=name).name == name


def test_an_unchanged_update_changes_the_time_alone():
    """Only `updated_at` changes, also if the client omits fields that were added by default."""
    old = new(category="business", partitions=3)
    assert changed(old) == replace(old, updated_at=NOW)
    asked = EventType("orders", category="business")
    assert definitions.changed(old, asked, SETTINGS, NOW_MS) == replace(old, updated_at=NOW)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"category": "data"},
        {"compatibility_mode": "none"},
        {"partition_strategy": "user_defined"},
        {"partition_key_fields": ("other",)},
        {"partitions": 4},
        {"partitions": 2},
        {"partitions": None, "default_statistic": Statistics(read_parallelism=4)},
        {"schema": Schema(schema="nope")},
        {"options": Options(0)},
    ],
)
def test_what_may_not_change_is_refused(change):
    """Stored events depend on these fields, so a change is Invalid."""
    old = new(category="business", partitions=3, partition_strategy="hash", partition_key_fields=("k",))
    with pytest.raises(Invalid):
        changed(old, **change)


def test_what_may_change_changes():
    """Retention, owner, audience and labels can change."""
    old = new()
    made = changed(old, options=Options(99), owning_application="new", labels={"x": "y"}, audience="all")
    assert (made.options.retention_time, made.owning_application, made.audience) == (99, "new", "all")
    assert (made.labels, made.created_at) == ({"x": "y"}, THEN)


def test_a_changed_schema_gets_a_version_and_a_time():
    """The version in the client's request is ignored."""
    old = new()
    made = changed(old, schema=replace(STRING, version="9.9.9"))
    assert made.schema == Schema(schema=STRING.schema, version="1.1.0", created_at=NOW)


def test_a_schema_that_is_only_written_differently_stays():
    """A schema with other whitespace is the same schema and is not stored again."""
    old = new(schema=STRING)
    assert changed(old, schema=Schema(schema=STRING.schema.replace(":", " : "))).schema == old.schema
