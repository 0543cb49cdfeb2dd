"""`strandline storages …`."""

from __future__ import annotations

import click

from strandline.cli import output
from strandline.cli.target import Target, on_target
from strandline.log.model import KafkaConfiguration, SqliteConfiguration, StorageInfo


@click.group()
def storages() -> None:
    """Show, add, choose and remove the places where records are stored."""


@storages.command("list")
@on_target
def list_storages(target: Target) -> None:
    """Show all storages."""
    with target.open() as rooms:
        found = rooms.log.storages()
    if target.as_json:
        output.print_json(found)
        return
    output.print_table(
        ("id", "type", "default", "where", "created"),
        (
            (info.id, info.storage_type, "yes" if info.default else "", _where(info), info.created_at)
            for info in found
        ),
        "no storages",
    )


@storages.command("add")
@click.argument("storage_id", metavar="ID")
@click.option("--kafka", "servers", metavar="HOST:PORT,…", help="Bootstrap servers of a Kafka cluster.")
@click.option(
    "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Kafka setting; may be repeated."
)
@click.option("--sqlite", "directory", metavar="DIR", help="Directory for SQLite files, below the data directory.")
@on_target
def add(
    target: Target, storage_id: str, servers: str | None, properties: tuple[str, ...], directory: str | None
) -> None:
    """Make a storage known: either --kafka or --sqlite says where it is."""
    if (servers is None) == (directory is None):
        raise click.UsageError("say where it is: either --kafka or --sqlite")
    kafka = None if servers is None else KafkaConfiguration(servers, _pairs(properties))
    sqlite = None if directory is None else SqliteConfiguration(directory)
    info = StorageInfo(storage_id, "sqlite" if servers is None else "kafka", kafka, sqlite)
    with target.open() as rooms:
        added = rooms.log.admin.add_storage(info)
    output.print_done(f"storage {added.id} added", added, as_json=target.as_json)


@storages.command("default")
@click.argument("storage_id", metavar="ID")
@on_target
def default(target: Target, storage_id: str) -> None:
    """Put new event types on storage ID from now on."""
    with target.open() as rooms:
        chosen = rooms.log.admin.set_default_storage(storage_id)
    output.print_done(f"new event types go to {chosen.id}", chosen, as_json=target.as_json)


@storages.command("remove")
@click.argument("storage_id", metavar="ID")
@on_target
def remove(target: Target, storage_id: str) -> None:
    """Forget storage ID; one in use or the default stays."""
    with target.open() as rooms:
        rooms.log.admin.remove_storage(storage_id)
    output.print_done(f"storage {storage_id} removed", {"removed": storage_id}, as_json=target.as_json)


def _pairs(properties: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in properties:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--property must look like name=value, not {text!r}")
        found[name] = value
    return found


def _where(info: StorageInfo) -> str | None:
    if info.kafka_configuration is not None:
        return info.kafka_configuration.bootstrap_servers
    return info.sqlite_configuration.directory if info.sqlite_configuration else None
