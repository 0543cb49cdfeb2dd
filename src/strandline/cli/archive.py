"""`strandline archive …`: the state of hours, manifests, verification and replay."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.text import Text

from strandline.cli import output
from strandline.cli.failures import FAILED
from strandline.cli.group import Group
from strandline.cli.target import Target, on_target
from strandline.clock import system_clock
from strandline.errors import Invalid

if TYPE_CHECKING:  # imported by the commands that need them: slow to load
    from strandline.archive.room import ArchiveStatus, HourStatus

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MARKS = {"ready": ("■", "green"), "due": ("□", "yellow"), "open": ("·", "dim")}
_LEGEND = "■ ready   □ ended, not complete   · not ended   a number: revisions by late events"


def _hour(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """A click callback that parses an hour. A date means the first hour of the day."""
    from strandline.archive.model import hour_name, parse_hour  # noqa: PLC0415 - slow to load

    if text is None:
        return None
    try:
        return hour_name(parse_hour(f"{text}T00" if _DATE.fullmatch(text) else text))
    except Invalid:
        raise click.BadParameter(f"{text!r} is not an hour; write 2026-11-15T12 or 2026-11-15, UTC") from None


def _span(command: Callable[..., Any]) -> Callable[..., Any]:
    first = click.option("--from", "start", callback=_hour, metavar="HOUR", help="First hour, UTC: 2026-11-15T12.")
    last = click.option("--to", "end", callback=_hour, metavar="HOUR", help="End of the span, not included.")
    return first(last(command))


_hour_argument = click.argument("hour", callback=_hour, metavar="HOUR")


@click.group(cls=Group)
def archive() -> None:
    """Show which hours are complete, wait for them, verify their files, and replay them."""


@archive.command("status")
@_span
@on_target
def status(target: Target, start: str | None, end: str | None) -> None:
    """Show a grid of hours: ■ ready, □ ended but not complete, · not ended. Default: yesterday and today."""
    from strandline.archive.model import DAY_MS, HOUR_MS, day_of, hour_name, parse_hour  # noqa: PLC0415 - slow

    end = end or hour_name(system_clock().now_ms() + HOUR_MS)
    start = start or hour_name(day_of(parse_hour(end) - 1) - DAY_MS)
    with target.open() as rooms:
        found = rooms.archive.status()
        listed = {one.event_type: [*rooms.archive.hours(one.event_type, start, end)] for one in found}
        periods = [*rooms.archive.periods(start, end)]
    # Due hours before the span are shown as well: nobody would look for them.
    hours = {one.event_type: listed[one.event_type] for one in found if listed[one.event_type] or one.due_hours}
    found = [one for one in found if one.event_type in hours]
    if target.as_json:
        event_types = [{**msgspec.to_builtins(one), "hours": hours[one.event_type]} for one in found]
        output.print_json({"event_types": event_types, "periods": periods})
        return
    if not found:
        print("nothing is archived in this span; start the archive with `strandline pipeline run archive`")
        return
    if rows := {name: own for name, own in hours.items() if own}:
        _print_grid(rows)
    _print_counts(found)


def _print_grid(hours: Mapping[str, Sequence[HourStatus]]) -> None:
    """Print one line per event type and day."""
    wide = max(map(len, hours))
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(Text(" " * (wide + 13) + "".join(f"{hour:02d} " for hour in range(24)), "dim"))
    for event_type, own in hours.items():
        days: dict[str, dict[int, HourStatus]] = {}
        for hour in own:
            days.setdefault(hour.hour[:10], {})[int(hour.hour[11:13])] = hour
        for day, of_day in days.items():
            line = Text(f"{event_type:{wide}} {day}  ")
            for number in range(24):
                mark, style = _MARKS[of_day[number].state] if number in of_day else (" ", "")
                late = of_day[number].revision if number in of_day else 0
                line.append(f"{mark}{late if late > 1 else ' '} ", style)
            console.print(line)
    console.print(Text(f"{_LEGEND}\n", "dim"))


def _print_counts(found: Sequence[ArchiveStatus]) -> None:
    output.print_table(
        (
            "event type",
            "read",
            "archived",
            "late",
            "quarantined",
            "dropped",
            "skipped",
            "lag",
            "last ready",
            "worked at",
        ),
        (
            (one.event_type, *msgspec.structs.astuple(one.counts), one.lag, one.last_ready, one.worked_at)
            for one in found
        ),
    )
    _print_due(found)


def _print_due(found: Sequence[ArchiveStatus]) -> None:
    for one in found:
        if one.due:
            others = output.counted(one.due_hours - 1, "more hour is", "more hours are")
            more = f" ({others} due)" if one.due_hours > 1 else ""
            print(f"{one.event_type}: {one.due[0].hour} is not ready: {one.due[0].reason}{more}")


@archive.command("hours")
@click.argument("event_type")
@_span
@click.option("--state", type=click.Choice([*_MARKS]), help="Only hours in this state.")
@on_target
def hours(target: Target, event_type: str, start: str | None, end: str | None, state: Any) -> None:
    """List the hours of EVENT_TYPE with their state, oldest first."""
    with target.open() as rooms:
        found = [*rooms.archive.hours(event_type, start, end, state)]
    target.print_table(
        found,
        ("hour", "state", "revision", "reason"),
        ((one.hour, one.state, one.revision or None, one.reason) for one in found),
        "no hours in this span and state",
    )


@archive.command("manifest")
@click.argument("event_type")
@_hour_argument
@on_target
def manifest(target: Target, event_type: str, hour: str) -> None:
    """Print the manifest of an hour, the content of `_READY`: files, rows, checksums and cursors.

    Exit code 1 if the hour is not ready.
    """
    with target.open() as rooms:
        output.print_json(rooms.archive.manifest(event_type, hour))


@archive.command("wait")
@click.argument("event_type")
@_hour_argument
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Default: no timeout.")
@on_target
def wait(target: Target, event_type: str, hour: str, timeout: float | None) -> None:
    """Return when HOUR of EVENT_TYPE is ready. Exit code 3 if the timeout expires first."""
    with target.open() as rooms:
        ready = rooms.archive.wait(event_type, hour, timeout)
    counts = f"revision {ready.revision}, rows {ready.rows:,}, files {len(ready.files)}"
    target.print_done(f"{event_type} {hour} is ready: {counts}", ready)


@archive.command("verify")
@click.argument("event_types", nargs=-1, metavar="[EVENT_TYPE]…")
@_span
@on_target
def verify(target: Target, event_types: tuple[str, ...], start: str | None, end: str | None) -> int:
    """Compare the files of every ready hour with its flag and the ledger. Reads all files.

    Exit code 1 if a check fails.
    """
    checks = []
    with target.open() as rooms, _counting("verified", quiet=target.as_json) as count:
        known = rooms.archive.status()
        for name in event_types or [one.event_type for one in known]:
            for check in rooms.archive.verify(name, start, end):
                checks.append(check)
                count()
    bad = [check for check in checks if not check.ok]
    if target.as_json:
        output.print_json(checks)
    else:
        for check in bad:
            print(f"{check.event_type} {check.hour}: {'; '.join(check.problems)}")
        rows = sum(check.rows for check in checks)
        ready = output.counted(len(checks), "ready hour is", "ready hours are")
        print(f"{len(checks) - len(bad)} of {ready} in order, {output.counted(rows, 'row')}")
        _print_due([one for one in known if not event_types or one.event_type in event_types])
    return FAILED if bad else 0


@archive.command("replay")
@click.argument("event_type")
@click.option("--into", required=True, metavar="NAME", help="The event type to publish to.")
@_span
@on_target
def replay(target: Target, event_type: str, into: str, start: str | None, end: str | None) -> None:
    """Publish the archived hours of EVENT_TYPE into another event type, oldest first.

    Works on a data directory (--data), not on a server. Events keep their eid, so readers can detect duplicates.
    """
    hours, events = 0, 0
    with target.open_data() as platform, _counting("replayed", quiet=target.as_json) as count:
        if start is None or end is None:
            raise click.UsageError("name the hours with --from and --to; see `strandline archive status`")
        for replayed in platform.archive.replay(event_type, start, end, into):
            hours, events = hours + 1, events + replayed.events
            count()
    counts = {"hours": hours, "events": events, "into": into}
    target.print_done(
        f"published {output.counted(events, 'event')} of {output.counted(hours, 'hour')} into {into}", counts
    )


@archive.command("moved")
@on_target
def moved(target: Target) -> None:
    """Accept a changed archive.root, after everything was copied there.

    Stop all archive processes before you copy. Works on a data directory (--data), not on a server.
    """
    with target.open_data() as platform:
        hours = platform.archive.moved()
    target.print_done(f"found {output.counted(hours, 'flagged hour')} in the new place", {"hours": hours})


@archive.command("retire")
@click.argument("event_type")
@click.option("--at", callback=_hour, metavar="HOUR", help="First hour not archived; default: the next one.")
@on_target
def retire(target: Target, event_type: str, at: str | None) -> None:
    """Stop archiving EVENT_TYPE; hours and days no longer wait for it.

    Works on a data directory (--data), not on a server.
    """
    with target.open_data() as platform:
        platform.archive.retire(event_type, at)
    target.print_done(f"{event_type} is archived until {at or 'the next hour'}", {"event_type": event_type})


@contextmanager
def _counting(done: str, *, quiet: bool) -> Iterator[Callable[[], None]]:
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} hours {task.description}"))
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task(done, total=None)
        yield lambda: progress.advance(task)
