"""`strandline storages …`."""

from __future__ import annotations

import click

from strandline.cli import output
from strandline.cli.target import Target, on_target
from strandline.log.model import StorageInfo


@click.group()
def storages() -> None:
    """Show where records are stored."""


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


def _where(info: StorageInfo) -> str | None:
    if info.kafka_configuration is not None:
        return info.kafka_configuration.bootstrap_servers
    return info.sqlite_configuration.directory if info.sqlite_configuration else None
