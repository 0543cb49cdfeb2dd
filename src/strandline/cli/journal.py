"""`strandline journal …`: topics of journals, and the journals of entities."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

import click
import msgspec

from strandline.cli import inputs, output
from strandline.cli.group import Group
from strandline.cli.target import Target, on_target, yes_option
from strandline.errors import Invalid
from strandline.journal import JournalTopic, NewEvent, Payload, wire

_bound = click.IntRange(min=0)  # of a read; 0 is before all events
_topic = click.argument("topic")
_id = click.argument("entity", metavar="ID")


@click.group(cls=Group)
def journal() -> None:
    """Append to the journals of entities, read and delete them."""


# -- topics


@journal.command("list")
@on_target
def list_topics(target: Target) -> None:
    """Show all topics of journals."""
    with target.open() as rooms:
        _print_topics(target, rooms.journals.topics())


@journal.command()
@_topic
@click.option("--partitions", type=click.IntRange(min=1), help="Number of partitions; never changes. Default: 1.")
@click.option("--storage", help="Storage of the actions; default: the default one.")
@click.option("--kafka-topic", help="Use this existing topic of a Kafka storage, shared with kafka-journal.")
@on_target
def create(target: Target, topic: str, **given: Any) -> None:
    """Create TOPIC for journals. No effect if it exists with the same values."""
    with target.open() as rooms:
        made = rooms.journals.create(topic, **given)
    target.print_done(f"created {topic}", made)


def _print_topics(target: Target, found: Sequence[JournalTopic]) -> None:
    rows = [(one.name, one.partitions, one.storage, one.kafka_topic) for one in found]
    target.print_table(found, ("topic", "partitions", "storage", "kafka topic"), rows, "no topics of journals yet")


# -- journals


@journal.command()
@_topic
@click.argument("entity", metavar="[ID]", required=False)
@click.option("--from", "first", type=_bound, default=1, show_default=True, help="First seqNr.")
@click.option("--to", "last", type=_bound, help="Last seqNr; default: the newest.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Stop after N events.")
@on_target
def show(target: Target, topic: str, entity: str | None, first: int, last: int | None, limit: int | None) -> None:
    """Show TOPIC, or the events of its journal ID: one JSON object per line."""
    with target.open() as rooms:
        if entity is None:
            found = [one for one in rooms.journals.topics() if one.name == topic]
            if not found:
                raise Invalid(f"there is no topic {topic!r:.80} of journals; see `strandline journal list`")
            _print_topics(target, found)
            return
        for event in rooms.journal(topic).read(entity, first, last, limit=limit):
            sys.stdout.buffer.write(wire.to_line(event))
        sys.stdout.buffer.flush()


@journal.command()
@_topic
@_id
@click.argument("events", nargs=-1, metavar="[EVENT]...")
@click.option("--file", type=click.File("rb"), help="One JSON event per line; - is standard input.")
@click.option(
    "--expected", type=click.IntRange(min=0), help="Refuse the append if the newest seqNr is another one."
)
@click.option("--tag", "tags", multiple=True, help="Tag of the events; may be repeated.")
@click.option("--metadata", help="JSON that is stored with every event.")
@click.option(
    "--expire-after", "expire_after_ms", callback=output.to_ms, help="Purge the journal this long after: 30d."
)
@on_target
def append(
    target: Target, topic: str, entity: str, events: Sequence[str], file: BinaryIO | None, **options: Any
) -> None:
    """Append the JSON texts EVENT to the journal ID of TOPIC, together or not at all."""
    if bool(events) == (file is not None):
        raise click.UsageError("give either EVENTs or a --file", click.get_current_context())
    texts = [text.encode() for text in events] if file is None else [line.text for line in inputs.events(file)]
    new = [NewEvent(Payload("json", text), options["tags"]) for text in texts]
    expected, metadata = options["expected"], options["metadata"]
    with target.open() as rooms:
        found = rooms.journal(topic)
        if expected is None:
            expected = found.pointer(entity).seq_nr or 0
        stored = found.append(
            entity,
            new,
            expected=expected,
            expire_after_ms=options["expire_after_ms"],
            metadata=None if metadata is None else _json(metadata),
        )
    target.print_done(
        f"appended {output.counted(len(new), 'event')} to {entity}, the last is {stored.seq_nr}", stored
    )


def _json(text: str) -> msgspec.Raw:
    try:
        return msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Invalid(
            f"{text!r:.60} is not JSON: {error}; a JSON text needs its own quotes inside those of the shell"
        ) from error


@journal.command()
@_topic
@_id
@on_target
def pointer(target: Target, topic: str, entity: str) -> None:
    """Show the newest seqNr of the journal ID of TOPIC, and up to which one its events are deleted."""
    with target.open() as rooms:
        found = rooms.journal(topic).pointer(entity)
    target.print_table(found, ("seq_nr", "deleted to", "since"), [(found.seq_nr, found.delete_to, found.since)])


@journal.command()
@_topic
@_id
@click.option("--to", type=click.IntRange(min=1), required=True, help="The last seqNr to delete.")
@yes_option
@on_target
def delete(target: Target, topic: str, entity: str, to: int, *, yes: bool) -> None:
    """Delete the events of the journal ID of TOPIC up to and including --to."""
    target.confirm(f"Delete the events of {entity} up to {to}?", yes=yes)
    with target.open() as rooms:
        rooms.journal(topic).delete(entity, to)
    target.print_done(f"deleted the events of {entity} up to {to}", {"deleted": entity, "to": to})


@journal.command()
@_topic
@_id
@yes_option
@on_target
def purge(target: Target, topic: str, entity: str, *, yes: bool) -> None:
    """Delete the journal ID of TOPIC with its snapshots. The next append starts a new one."""
    target.confirm(f"Delete the journal {entity} with its snapshots?", yes=yes)
    with target.open() as rooms:
        rooms.journal(topic).purge(entity)
    target.print_done(f"purged {entity}", {"purged": entity})


@journal.command()
@_topic
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Most records to show.")
@click.option("--after", metavar="PLACE", help="Only records after this place.")
@on_target
def dead(target: Target, topic: str, limit: int, after: str | None) -> None:
    """List the records of TOPIC that could not be decoded and were set aside by replication."""
    with target.open() as rooms:
        found = [
            wire.DeadLetterView.of(one) for one in rooms.journals.dead_letters(topic, limit=limit, after=after)
        ]
    rows = [(one.place, one.timestamp, one.reason, _key(one.key)) for one in found]
    target.print_table(found, ("place", "time", "reason", "key"), rows, "no dead letters")


def _key(key: bytes | None) -> str | None:
    return None if key is None else key.decode(errors="replace")
