"""`strandline partitions`."""

from __future__ import annotations

import click

from strandline.cli import output
from strandline.cli.target import Target, on_target


@click.command()
@click.argument("name")
@on_target
def partitions(target: Target, name: str) -> None:
    """Show the oldest and newest offset of every partition of event type NAME."""
    with target.open() as rooms:
        found = rooms.log.partitions(name)
    if target.as_json:
        output.print_json(found)
        return
    output.print_table(
        ("partition", "oldest available", "newest available"),
        ((info.partition, info.oldest_available_offset, info.newest_available_offset) for info in found),
        "no partitions",
    )
