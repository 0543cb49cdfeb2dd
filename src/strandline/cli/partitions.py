"""`strandline partitions`."""

from __future__ import annotations

import click

from strandline.cli.target import Target, on_target


@click.command()
@click.argument("name")
@on_target
def partitions(target: Target, name: str) -> None:
    """Show the oldest and newest offset of every partition of event type NAME."""
    with target.open() as rooms:
        found = rooms.log.partitions(name)
    target.print_table(
        found,
        ("partition", "oldest available", "newest available"),
        ((info.partition, info.oldest_available_offset, info.newest_available_offset) for info in found),
        "no partitions",
    )
