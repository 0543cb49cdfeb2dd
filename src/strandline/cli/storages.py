"""`strandline storages …`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from strandline.cli.group import Group
from strandline.cli.target import Target, on_target, yes_option
from strandline.log.model import StorageInfo
from strandline.log.storage.registry import STORAGE_TYPES

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group(cls=Group)
def storages() -> None:
    """Show, add and remove storages, and choose the default."""


@storages.command("list")
@on_target
def list_storages(target: Target) -> None:
    """Show all storages."""
    with target.open() as rooms:
        found = rooms.log.storages()
    target.print_table(
        found,
        ("id", "type", "default", "where", "created"),
        (
            (one.id, one.storage_type, "yes" if one.default else "", one.configuration.location, one.created_at)
            for one in found
        ),
        "no storages",
    )


def _location_options(command: _Command) -> _Command:
    """Add one option for each type of storage."""
    for name, kind in reversed(STORAGE_TYPES.items()):
        command = click.option(f"--{name}", metavar=kind.location_format, help=kind.location_help)(command)
    return command


@storages.command("add")
@click.argument("storage_id", metavar="ID")
@_location_options
@click.option(
    "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Driver setting; may be repeated."
)
@on_target
def add(target: Target, storage_id: str, properties: tuple[str, ...], **locations: str | None) -> None:
    """Add a storage. Its type is the option that says where it is."""
    given = {name: location for name, location in locations.items() if location is not None}
    if len(given) != 1:
        raise click.UsageError(f"give exactly one of {', '.join(f'--{name}' for name in STORAGE_TYPES)}")
    ((name, location),) = given.items()
    configuration = STORAGE_TYPES[name].parse(location, _pairs(properties))
    fields: dict[str, Any] = {"storage_type": name, f"{name}_configuration": configuration}
    with target.open() as rooms:
        added = rooms.log.admin.add_storage(StorageInfo(storage_id, **fields))
    target.print_done(f"storage {added.id} added", added)


@storages.command("default")
@click.argument("storage_id", metavar="ID")
@on_target
def default(target: Target, storage_id: str) -> None:
    """Make storage ID the default for new event types."""
    with target.open() as rooms:
        chosen = rooms.log.admin.set_default_storage(storage_id)
    target.print_done(f"new event types are stored on {chosen.id}", chosen)


@storages.command("remove")
@click.argument("storage_id", metavar="ID")
@yes_option
@on_target
def remove(target: Target, storage_id: str, *, yes: bool) -> None:
    """Remove storage ID. A storage in use and the default cannot be removed."""
    target.confirm(f"Remove the storage {storage_id}?", yes=yes)
    with target.open() as rooms:
        rooms.log.admin.remove_storage(storage_id)
    target.print_done(f"storage {storage_id} removed", {"removed": storage_id})


def _pairs(properties: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in properties:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--property must look like name=value, not {text!r}")
        found[name] = value
    return found
