"""`strandline publish`: events from a file or a pipe, in batches, in order."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Sequence
from typing import BinaryIO

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from strandline.cli import inputs, output
from strandline.cli.batch_publisher import Tally, feed
from strandline.cli.failures import FAILED
from strandline.cli.inputs import Line
from strandline.cli.target import Target, on_target
from strandline.errors import StrandlineError
from strandline.log import Log

_SHOWN = 5


@click.command()
@click.argument("name")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--batch-size", default=1000, show_default=True, type=click.IntRange(min=1), help="Events a batch.")
@click.option(
    "--on-error",
    type=click.Choice(["stop", "continue"]),
    default="stop",
    show_default=True,
    help="What to do after a batch that failed.",
)
@on_target
def publish(target: Target, name: str, file: BinaryIO, batch_size: int, on_error: str) -> int:
    """Publish events to event type NAME from FILE, or from standard input.

    The input is one JSON object per line, or one JSON array. A line from a pipe waits 0.1 s for others at most. If
    an event of a batch breaks a rule, no event of the batch is published. Ctrl-C finishes the current batch and
    prints the line to continue from.
    """
    if file.isatty():
        print("reading events, one JSON object per line; Ctrl-D ends the input", file=sys.stderr)
    tally = Tally(name)
    started = time.monotonic()
    failure: StrandlineError | None = None
    with target.open() as rooms:
        try:
            _run(rooms.log, file, batch_size, tally, stop_on_error=on_error == "stop", quiet=target.as_json)
        except StrandlineError as error:
            failure = error
    tally.seconds = round(time.monotonic() - started, 3)
    if failure is None or tally.published:
        _print_summary(tally, as_json=target.as_json)
    if failure is not None:
        raise failure
    return 0 if tally.clean else FAILED


def _run(log: Log, file: BinaryIO, batch_size: int, tally: Tally, *, stop_on_error: bool, quiet: bool) -> None:
    columns = (TextColumn("{task.fields[events]:,} events"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("", total=_size(file), events=0)

        def advance(batch: Sequence[Line]) -> None:
            # Reading removed at least the line end.
            progress.advance(task, sum(len(line.text) + 1 for line in batch))
            progress.update(task, events=tally.published)

        lines = inputs.opened(file)
        waits = {"comes_by": lines.comes_by} if isinstance(lines, inputs.Pipe) else {}
        batches = inputs.batches(inputs.events(lines), batch_size, **waits)
        feed(log, batches, tally, stop_on_error=stop_on_error, advance=advance)


def _size(file: BinaryIO) -> int | None:
    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _print_summary(tally: Tally, *, as_json: bool) -> None:
    if as_json:
        output.print_json(tally)
        return
    for failure in tally.failures[:_SHOWN]:
        print(f"line {failure.line}: {failure.step}: {failure.detail}", file=sys.stderr)
    for first, last in tally.incomplete[:_SHOWN]:
        print(f"lines {first} to {last}: this batch was not completely published", file=sys.stderr)
    losses = {"failed": tally.failed, "aborted": tally.aborted, "unknown": tally.unknown}
    counts = [f"{tally.published} published", *(f"{count} {name}" for name, count in losses.items() if count)]
    print(f"{', '.join(counts)} in {tally.seconds:.1f} s")
    if not tally.clean:
        _print_next_step(tally)


def _print_next_step(tally: Tally) -> None:
    if tally.interrupted:
        print(f"error: interrupted; continue from line {tally.next_line}", file=sys.stderr)
    elif tally.unknown:
        print("error: the outcome of some events is unknown; check before you publish them again", file=sys.stderr)
    else:
        print("error: not every event was published; correct and publish the lines above", file=sys.stderr)
