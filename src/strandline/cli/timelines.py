"""`strandline timelines …`."""

from __future__ import annotations

import click

from strandline.cli.group import Group
from strandline.cli.target import Target, on_target
from strandline.log.model import Timeline


@click.group(cls=Group)
def timelines() -> None:
    """Show and switch the storage epochs of an event type."""


@timelines.command("list")
@click.argument("name")
@on_target
def list_timelines(target: Target, name: str) -> None:
    """Show the timelines of event type NAME, oldest first."""
    with target.open() as rooms:
        found = rooms.log.timelines(name)
    target.print_table(
        found,
        ("order", "storage", "state", "switched", "closed", "topic"),
        ((t.order, t.storage_id, _state(t), t.switched_at, t.closed_at, t.topic) for t in found),
        "no timelines",
    )


@timelines.command("switch")
@click.argument("name")
@click.argument("storage")
@click.option("--dry-run", is_flag=True, help="Only check whether the switch is possible now.")
@on_target
def switch(target: Target, name: str, storage: str, *, dry_run: bool) -> None:
    """Switch event type NAME to STORAGE while it is written and read."""
    with target.open() as rooms:
        if dry_run:
            rooms.log.admin.check_switch(name, storage)
            target.print_done(f"{name} can be switched to {storage} now", {"possible": True})
            return
        created = rooms.log.admin.switch(name, storage)
    target.print_done(f"{name} is on {created.storage_id} now, in timeline {created.order}", created)


@timelines.command("status")
@click.argument("name")
@on_target
def status(target: Target, name: str) -> None:
    """Show the newest switch of event type NAME, its state, and the nodes that it waits for."""
    with target.open() as rooms:
        found = rooms.log.admin.current_switch(name)
    text = f"{name} was never switched"
    if found is not None:
        text = f"{found.kind} to {found.storage_id}: {found.state} (started {found.started_at})"
        for node in found.unconfirmed:
            text += f"\nnot confirmed by {node}"
    target.print_done(text, found)


@timelines.command("abort")
@click.argument("name")
@on_target
def abort(target: Target, name: str) -> None:
    """Abort a switch of event type NAME that is not decided yet."""
    with target.open() as rooms:
        aborted = rooms.log.admin.abort_switch(name)
    target.print_done(f"the {aborted.kind} of {name} was aborted; publishing continues", aborted)


def _state(timeline: Timeline) -> str:
    if timeline.cleaned_up_at is not None:
        return "removed"
    return "open" if timeline.latest_position is None else "closed"
