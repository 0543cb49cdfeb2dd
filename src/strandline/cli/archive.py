"""`strandline archive …`: which hours are complete, whether files are in order, and back into the log."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.text import Text

import strandline
from strandline.cli import output
from strandline.cli.failures import FAILED
from strandline.cli.target import data_option, debug_option, json_option
from strandline.clock import parse_rfc3339, to_rfc3339
from strandline.errors import NotFound

if TYPE_CHECKING:  # each command loads what it needs
    from strandline.archive.room import ArchiveStatus, HourStatus
    from strandline.platform import Platform

_HOUR_MS = 3_600_000
_SHORT = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d))?")
_MARKS = {"ready": ("■", "green"), "due": ("□", "yellow"), "open": ("·", "dim")}


def _hour(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """An option's callback: `2026-11-15`, `2026-11-15T12` or a full time as milliseconds."""
    if text is None:
        return None
    short = _SHORT.fullmatch(text)
    try:
        return parse_rfc3339(f"{short[1]}T{short[2] or '00'}:00:00Z" if short else text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time; write 2026-11-15, 2026-11-15T12 or RFC 3339") from None


def _span(command: Callable[..., Any]) -> Callable[..., Any]:
    first = click.option(
        "--from", "from_ms", callback=_hour, metavar="TIME", help="First hour, UTC: 2026-11-15T12."
    )
    last = click.option("--to", "to_ms", callback=_hour, metavar="TIME", help="End, not included.")
    return first(last(command))


@dataclass(frozen=True)
class _Place:
    data: Path
    as_json: bool

    @contextmanager
    def open(self) -> Iterator[Platform]:
        if not self.data.is_dir():
            raise NotFound(f"there is no data directory {self.data}; name the one of the log with --data")
        with strandline.open(self.data) as platform:
            yield platform


def _on_data(command: Callable[..., Any]) -> Callable[..., Any]:
    @data_option
    @json_option
    @debug_option
    @click.pass_context
    def wrapped(ctx: click.Context, /, data: Path, *, as_json: bool, **rest: Any) -> Any:
        return ctx.invoke(command, place=_Place(data, as_json), **rest)

    wrapped.__doc__ = command.__doc__
    return wrapped


@click.group()
def archive() -> None:
    """Show which hours are complete, verify their files, and replay them."""


@archive.command("status")
@_span
@_on_data
def status(place: _Place, from_ms: int | None, to_ms: int | None) -> None:
    """Show a grid of hours: ■ ready, □ ended but not complete, · not over yet. By default today and yesterday."""
    with place.open() as platform:
        now_ms = platform.archive.ledger.now_ms()
        to_ms = to_ms or now_ms - now_ms % _HOUR_MS + _HOUR_MS
        from_ms = (
            from_ms if from_ms is not None else (to_ms - 1) // (24 * _HOUR_MS) * 24 * _HOUR_MS - 24 * _HOUR_MS
        )
        found = platform.archive.status(from_ms, to_ms)
        periods = platform.archive.periods(from_ms, to_ms)
    if place.as_json:
        output.print_json({"event_types": found, "periods": periods})
        return
    if not found:
        print("nothing is archived yet; start it with `strandline pipeline run archive`")
        return
    _print_grid(found)
    output.print_table(
        ("event type", "read", "archived", "late", "quarantined", "dropped", "skipped", "waiting"),
        ((one.event_type, *msgspec.structs.astuple(one.counts), _waiting(one)) for one in found),
        "",
    )
    for one in found:
        blocked = next((hour for hour in one.hours if hour.state == "due"), None)
        if blocked is not None:
            print(f"{one.event_type}: {blocked.hour} waits: {blocked.reason}")


def _waiting(one: ArchiveStatus) -> int:
    return sum(partition.unarchived_events or 0 for partition in one.partitions)


def _print_grid(found: list[ArchiveStatus]) -> None:
    """A line for every event type and day."""
    wide = max(len(one.event_type) for one in found)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(Text(" " * (wide + 13) + "".join(f"{hour:02d} " for hour in range(24)), "dim"))
    for one in found:
        days: dict[str, dict[int, HourStatus]] = {}
        for hour in one.hours:
            days.setdefault(hour.hour[:10], {})[int(hour.hour[11:13])] = hour
        for day, hours in days.items():
            line = Text(f"{one.event_type:{wide}} {day}  ")
            for number in range(24):
                mark, style = _MARKS[hours[number].state] if number in hours else (" ", "")
                late = hours[number].revision if number in hours else 0
                line.append(f"{mark}{late if late > 1 else ' '} ", style)
            console.print(line)


@archive.command("verify")
@click.argument("event_types", nargs=-1, metavar="[EVENT_TYPE]…")
@_span
@_on_data
def verify(place: _Place, event_types: tuple[str, ...], from_ms: int | None, to_ms: int | None) -> int:
    """Hold every flagged hour against its flag and the ledger; reads all files.

    Exit code 1 if one is not in order.
    """
    verdicts = []
    with place.open() as platform, _counting("verified", quiet=place.as_json) as count:
        ledger = platform.archive.ledger
        names = event_types or sorted({term.event_type for term in ledger.terms()})
        for name in names:
            for verdict in platform.archive.verify(name, from_ms or 0, to_ms or ledger.now_ms()):
                verdicts.append(verdict)
                count()
    bad = [verdict for verdict in verdicts if not verdict.ok]
    if place.as_json:
        output.print_json(verdicts)
    else:
        for verdict in bad:
            print(f"{verdict.event_type} {verdict.hour}: {'; '.join(verdict.problems)}")
        rows = sum(verdict.rows for verdict in verdicts)
        print(f"{len(verdicts) - len(bad)} of {len(verdicts)} flagged hours are in order, {rows:,} rows")
    return FAILED if bad else 0


@archive.command("replay")
@click.argument("event_type")
@click.option("--into", required=True, metavar="NAME", help="The event type to publish to.")
@_span
@_on_data
def replay(place: _Place, event_type: str, into: str, from_ms: int | None, to_ms: int | None) -> None:
    """Publish the archived hours of EVENT_TYPE into another event type, oldest first.

    Events keep their eid, so that whoever reads them can tell when some come twice.
    """
    hours, events = 0, 0
    with place.open() as platform, _counting("replayed", quiet=place.as_json) as count:
        if from_ms is None or to_ms is None:
            raise click.UsageError("name the hours with --from and --to; see `strandline archive status`")
        for replayed in platform.archive.replay(event_type, from_ms, to_ms, into):
            hours, events = hours + 1, events + replayed.events
            count()
    output.print_done(
        f"{events:,} events of {hours} hours are in {into}",
        {"hours": hours, "events": events, "into": into},
        as_json=place.as_json,
    )


@archive.command("retire")
@click.argument("event_type")
@click.option(
    "--at", "to_ms", callback=_hour, metavar="TIME", help="First hour without it; default: the next one."
)
@_on_data
def retire(place: _Place, event_type: str, to_ms: int | None) -> None:
    """Do not archive EVENT_TYPE any more; hours and days no longer wait for it."""
    with place.open() as platform:
        platform.archive.retire(event_type, to_ms)
    end = to_rfc3339(to_ms) if to_ms is not None else "the next hour"
    output.print_done(f"{event_type} is archived until {end}", {"event_type": event_type}, as_json=place.as_json)


@contextmanager
def _counting(done: str, *, quiet: bool) -> Iterator[Callable[[], None]]:
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} hours {task.description}"))
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task(done, total=None)
        yield lambda: progress.advance(task)
