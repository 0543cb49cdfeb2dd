"""`strandline subscriptions …`."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from strandline.cli import output
from strandline.cli.group import Group
from strandline.cli.target import Target, on_target, yes_option
from strandline.log.subscriptions import Subscription, SubscriptionCursor
from strandline.log.subscriptions.room import Subscriptions

_PAGE = 1000


@click.group(cls=Group)
def subscriptions() -> None:
    """Show, create, reset and delete subscriptions."""


@subscriptions.command("list")
@click.option("--application", metavar="NAME", help="Only subscriptions of this application.")
@click.option("--event-type", "event_types", multiple=True, metavar="NAME", help="Only subscriptions to it.")
@on_target
def list_subscriptions(target: Target, application: str | None, event_types: tuple[str, ...]) -> None:
    """Show all subscriptions, newest first."""
    with target.open() as rooms:
        found = _all(rooms.log.subscriptions, application, event_types)
    target.print_table(
        found,
        ("id", "application", "group", "event types", "created (UTC)"),
        (
            (
                one.id,
                one.owning_application,
                one.consumer_group,
                ", ".join(one.event_types),
                (one.created_at or "")[:16].replace("T", " "),
            )
            for one in found
        ),
        "no subscriptions yet; create one with `strandline subscriptions create EVENT_TYPE`",
    )


def _all(room: Subscriptions, application: str | None, event_types: tuple[str, ...]) -> list[Subscription]:
    found: list[Subscription] = []
    while page := room.search(application, event_types, limit=_PAGE, offset=len(found)):
        found += page
        if len(page) < _PAGE:
            break
    return found


@subscriptions.command()
@click.argument("subscription_id", metavar="ID")
@on_target
def show(target: Target, subscription_id: str) -> None:
    """Show subscription ID and its committed cursors."""
    with target.open() as rooms:
        found = rooms.log.subscriptions.get(subscription_id)
        cursors = rooms.log.subscriptions.cursors(subscription_id)
    if not target.as_json:
        _print(target, found)
    target.print_table(
        {**msgspec.to_builtins(found), "cursors": cursors},
        ("event type", "partition", "committed"),
        ((cursor.event_type, cursor.partition, cursor.offset) for cursor in cursors),
        f"no cursors yet; it starts at the {found.read_from}",
    )


@subscriptions.command()
@click.argument("event_types", nargs=-1, required=True, metavar="EVENT_TYPE...")
@click.option("--group", default="default", show_default=True, help="Consumer group; each group reads all events.")
@click.option("--application", default="default", show_default=True, help="Application that owns it.")
@click.option(
    "--read-from", type=click.Choice(["begin", "end"]), default="end", show_default=True, help="Where to start."
)
@on_target
def create(target: Target, group: str, application: str, **fields: Any) -> None:
    """Create a subscription to event types, or show the existing one."""
    fields |= {"consumer_group": group, "owning_application": application}
    asked = msgspec.convert(fields, Subscription)
    with target.open() as rooms:
        made, new = rooms.log.subscriptions.create(asked)
    if not target.as_json:
        print(f"created {made.id}" if new else f"{made.id} exists already")
    _print(target, made)


@subscriptions.command()
@click.argument("subscription_id", metavar="ID")
@yes_option
@on_target
def delete(target: Target, subscription_id: str, *, yes: bool) -> None:
    """Delete subscription ID with its cursors; its streams end."""
    target.confirm(f"Delete subscription {subscription_id} with its cursors?", yes=yes)
    with target.open() as rooms:
        rooms.log.subscriptions.delete(subscription_id)
    target.print_done(f"deleted {subscription_id}", {"deleted": subscription_id})


@subscriptions.command()
@click.argument("subscription_id", metavar="ID")
@on_target
def stats(target: Target, subscription_id: str) -> None:
    """Show the reader and the unconsumed events of every partition of subscription ID."""
    with target.open() as rooms:
        found = rooms.log.subscriptions.stats(subscription_id, show_time_lag=True)
    rows = (
        (
            kind.event_type,
            part.partition,
            "unavailable" if part.unavailable else part.state,
            part.unconsumed_events,
            None if part.consumer_lag_seconds is None else f"{part.consumer_lag_seconds} s",
            part.skipped_events,
            part.stream_id or None,
        )
        for kind in found
        for part in kind.partitions
    )
    columns = ("event type", "partition", "state", "unconsumed", "behind", "skipped", "stream")
    target.print_table(found, columns, rows, "no partitions")


@subscriptions.command()
@click.argument("subscription_id", metavar="ID")
@click.option(
    "--to",
    "where",
    required=True,
    metavar="WHERE",
    help="BEGIN, END, an offset, or a time like 2024-05-01T12:00:00Z.",
)
@click.option("--event-type", metavar="NAME", help="Only partitions of this event type; needed for an offset.")
@click.option("--partition", "partitions", multiple=True, metavar="N", help="Only partition N; may be repeated.")
@on_target
def reset(
    target: Target, subscription_id: str, where: str, event_type: str | None, partitions: tuple[str, ...]
) -> None:
    """Reset the cursors of subscription ID. Its streams end; new streams start at the new cursors."""
    with target.open() as rooms:
        types = rooms.log.subscriptions.get(subscription_id).event_types
        cursors = [
            SubscriptionCursor(name, info.partition, where)
            for name in ([event_type] if event_type is not None else types)
            for info in rooms.log.partitions(name)
            if not partitions or info.partition in partitions
        ]
        if not cursors:
            raise click.UsageError("there is no such partition", click.get_current_context())
        rooms.log.subscriptions.reset(subscription_id, cursors)
    places = [(cursor.event_type, cursor.partition) for cursor in cursors]
    target.print_done(f"reset {output.counted(len(cursors), 'partition')} to {where}", {"reset": places})


def _print(target: Target, found: Subscription) -> None:
    rows = [
        ("id", found.id),
        ("application", found.owning_application),
        ("group", found.consumer_group),
        ("event types", ", ".join(found.event_types)),
        ("starts at", found.read_from),
        ("created", found.created_at),
        ("updated", found.updated_at),
    ]
    target.print_table(found, ("field", "value"), rows)
