"""`strandline timelines …`."""

from __future__ import annotations

import click

from strandline.cli import output
from strandline.cli.target import Target, on_target
from strandline.log.model import Timeline


@click.group()
def timelines() -> None:
    """Show the storage epochs of an event type."""


@timelines.command("list")
@click.argument("name")
@on_target
def list_timelines(target: Target, name: str) -> None:
    """Show the timelines of event type NAME, oldest first."""
    with target.open() as rooms:
        found = rooms.log.timelines(name)
    if target.as_json:
        output.print_json(found)
        return
    output.print_table(
        ("order", "storage", "state", "created", "switched", "topic"),
        ((t.order, t.storage_id, _state(t), t.created_at, t.switched_at, t.topic) for t in found),
        "no timelines",
    )


def _state(timeline: Timeline) -> str:
    if timeline.cleaned_up_at is not None:
        return "removed"
    return "open" if timeline.latest_position is None else "closed"
