"""The rules for event type definitions: pure functions from a requested definition to the stored one."""

from __future__ import annotations

import re

import msgspec

from strandline.clock import to_rfc3339
from strandline.errors import Invalid
from strandline.log import schemas
from strandline.log.model import NAME_PATTERN, EventType, JournalKind, Options, Schema, Statistics
from strandline.log.settings import LogSettings

_NAME = re.compile(NAME_PATTERN).fullmatch
_FIXED = ("category", "compatibility_mode", "cleanup_policy", "partition_strategy", "partition_key_fields")


def new(asked: EventType, settings: LogSettings, now_ms: int) -> EventType:
    """A complete definition for a new event type; Invalid says what to change."""
    _check(asked, settings)
    now = to_rfc3339(now_ms)
    count = asked.partition_count
    return msgspec.structs.replace(
        asked,
        partitions=count,
        default_statistic=Statistics(read_parallelism=count, write_parallelism=count),
        options=Options(asked.options.retention_time or settings.retention_ms),
        enrichment_strategies=() if asked.category == "undefined" else ("metadata_enrichment",),
        schema=Schema(schema=asked.schema.schema, version="1.0.0", created_at=now),
        created_at=now,
        updated_at=now,
        journal=None,
    )


def actions(name: str, partitions: int, kind: JournalKind, settings: LogSettings, now_ms: int) -> EventType:
    """The definition of an event type whose records are actions of journals; Invalid says what to change."""
    asked = EventType(name, partitions=partitions)
    # The partition comes from the hash of the record's key. No field of an event has it.
    return msgspec.structs.replace(
        new(asked, settings, now_ms), partition_strategy="hash", options=Options(), journal=kind
    )


def changed(old: EventType, asked: EventType, settings: LogSettings, now_ms: int) -> EventType:
    """The definition after an update; Invalid if the change is not allowed."""
    if asked.name != old.name:
        raise Invalid(f"the name of an event type cannot change (from {old.name!r} to {asked.name!r})")
    _check(asked, settings)
    for field in _FIXED:
        before, after = getattr(old, field), getattr(asked, field)
        if before != after:
            raise Invalid(f"{field} cannot change (from {before!r} to {after!r})")
    asks_for_count = asked.partitions is not None or asked.default_statistic is not None
    if asks_for_count and asked.partition_count != old.partition_count:
        counts = f"from {old.partition_count} to {asked.partition_count}"
        raise Invalid(f"the partition count cannot change in an update ({counts}); grow the event type instead")
    version = schemas.next_version(old, asked)
    schema = old.schema
    if version != old.schema.version:
        schema = Schema(schema=asked.schema.schema, version=version, created_at=to_rfc3339(now_ms))
    return msgspec.structs.replace(
        asked,
        partitions=old.partitions,
        default_statistic=old.default_statistic,
        options=Options(asked.options.retention_time or old.options.retention_time),
        enrichment_strategies=old.enrichment_strategies,
        schema=schema,
        created_at=old.created_at,
        journal=old.journal,
        updated_at=to_rfc3339(now_ms),
    )


def _check(asked: EventType, settings: LogSettings) -> None:
    try:
        msgspec.convert(msgspec.to_builtins(asked), EventType)
    except msgspec.ValidationError as error:
        raise Invalid(f"the event type is not valid: {error}") from None
    if not _NAME(asked.name):  # the pattern alone accepts a line break at the end
        raise Invalid(f"{asked.name!r} is not a valid name; it must match {NAME_PATTERN}")
    if asked.partition_count > settings.max_partitions:
        raise Invalid(f"{asked.partition_count} partitions are too many; at most {settings.max_partitions}")
    if asked.partition_strategy == "hash" and not asked.partition_key_fields:
        raise Invalid("partition_strategy hash needs partition_key_fields")
    if asked.category == "undefined" and asked.enrichment_strategies:
        raise Invalid("an event type of category undefined cannot have enrichment strategies")
    schemas.check_definition(asked)
