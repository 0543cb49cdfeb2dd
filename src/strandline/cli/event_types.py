"""`strandline event-types …`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO, get_args

import click
import msgspec

from strandline.cli import output
from strandline.cli.group import Group
from strandline.cli.target import Target, on_target, yes_option
from strandline.errors import Invalid, Malformed
from strandline.log.model import Category, EventType, Strategy

Fields = dict[str, Any]


@click.group(cls=Group)
def event_types() -> None:
    """List, show, create, update, grow and delete event types."""


@event_types.command("list")
@on_target
def list_event_types(target: Target) -> None:
    """Show all event types."""
    with target.open() as rooms:
        found = rooms.log.event_types()
    target.print_table(
        found,
        ("name", "category", "partitions", "strategy", "retention", "owner", "updated (UTC)"),
        (
            (
                kind.name,
                kind.category,
                kind.partition_count,
                kind.partition_strategy,
                output.duration_text(kind.options.retention_time),
                kind.owning_application,
                # Without seconds, so that the table fits into 80 columns.
                (kind.updated_at or "")[:16].replace("T", " "),
            )
            for kind in found
        ),
        "no event types yet; create one with `strandline event-types create NAME`",
    )


@event_types.command()
@click.argument("name")
@on_target
def show(target: Target, name: str) -> None:
    """Show event type NAME."""
    with target.open() as rooms:
        _print(target, rooms.log.get(name))


def _definition_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `create` and `update`. Each option overrides --file."""
    for option in (
        click.option("--file", "file", type=click.File("rb"), help="Definition as JSON; - is standard input."),
        click.option("--owner", "owning_application", help="Application that owns the event type."),
        click.option("--retention", callback=output.to_ms, help="How long to keep events: 2d, 36h, 90m or ms."),
        click.option("--schema", "schema", type=click.File("rb"), help="File with the JSON schema of the events."),
    ):
        command = option(command)
    return command


@event_types.command()
@click.argument("name", required=False)
@click.option("--partitions", type=click.IntRange(min=1), help="Number of partitions; default 1.")
@click.option("--category", type=click.Choice(get_args(Category)), help="Default undefined.")
@click.option("--strategy", "partition_strategy", type=click.Choice(get_args(Strategy)), help="Default random.")
@click.option("--key-field", "key_fields", multiple=True, help="Field of the partition key; may be repeated.")
@_definition_options
@on_target
def create(target: Target, name: str | None, key_fields: tuple[str, ...], **options: Any) -> None:
    """Create event type NAME, from options, from a --file, or from both."""
    file = options.pop("file")
    fields = {} if file is None else _json_object(file)
    if name is not None:
        fields["name"] = name
    if "name" not in fields:
        raise click.UsageError("give NAME, or a --file that has a name", click.get_current_context())
    if key_fields:
        fields["partition_key_fields"] = key_fields
    asked = _event_type(_merged(fields, options))
    with target.open() as rooms:
        _print(target, rooms.log.create(asked), done="created")


@event_types.command()
@click.argument("name")
@_definition_options
@on_target
def update(target: Target, name: str, **options: Any) -> None:
    """Change event type NAME: the fields given as options, or all fields with --file."""
    if all(value is None for value in options.values()):
        raise click.UsageError("give --file or another option to change something", click.get_current_context())
    file = options.pop("file")
    with target.open() as rooms:
        fields = msgspec.to_builtins(rooms.log.get(name)) if file is None else _json_object(file)
        asked = _event_type(_merged({**fields, "name": name}, options))
        _print(target, rooms.log.update(asked), done="updated")


@event_types.command()
@click.argument("name")
@yes_option
@on_target
def delete(target: Target, name: str, *, yes: bool) -> None:
    """Delete event type NAME with all its events."""
    target.confirm(f"Delete {name} with all its events?", yes=yes)
    with target.open() as rooms:
        rooms.log.delete(name)
    target.print_done(f"deleted {name}", {"deleted": name})


@event_types.command("grow")
@click.argument("name")
@click.argument("partitions", type=click.IntRange(min=1))
@on_target
def grow(target: Target, name: str, partitions: int) -> None:
    """Grow event type NAME to PARTITIONS partitions while it is written and read."""
    with target.open() as rooms:
        rooms.log.admin.grow(name, partitions)
    target.print_done(f"{name} has {output.counted(partitions, 'partition')}", {"partitions": partitions})


def _json_object(file: BinaryIO) -> Fields:
    try:
        return msgspec.json.decode(file.read(), type=Fields)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Malformed(f"{file.name} does not contain a JSON object: {error}") from None


def _merged(fields: Fields, options: Fields) -> Fields:
    """The definition, overridden by the options."""
    given = {name: value for name, value in options.items() if value is not None}
    if (retention := given.pop("retention", None)) is not None:
        fields["options"] = {**(fields.get("options") or {}), "retention_time": retention}
    if (schema := given.pop("schema", None)) is not None:
        text = msgspec.json.encode(_json_object(schema)).decode()
        fields["schema"] = {"type": "json_schema", "schema": text}
    return {**fields, **given}


def _event_type(fields: Fields) -> EventType:
    try:
        return msgspec.convert(fields, EventType)
    except msgspec.ValidationError as error:
        raise Invalid(f"the event type is not valid: {error}") from None


def _print(target: Target, kind: EventType, done: str | None = None) -> None:
    if done is not None and not target.as_json:
        print(f"{done} {kind.name}")
    rows = [
        ("name", kind.name),
        ("owner", kind.owning_application or None),
        ("category", kind.category),
        ("partitions", kind.partition_count),
        ("strategy", kind.partition_strategy),
        ("key fields", ", ".join(kind.partition_key_fields) or None),
        ("retention", output.duration_text(kind.options.retention_time)),
        ("compatibility", kind.compatibility_mode),
        ("schema", f"{kind.schema.version}  {kind.schema.schema}"),
        ("created", kind.created_at),
        ("updated", kind.updated_at),
    ]
    target.print_table(kind, ("field", "value"), rows)
