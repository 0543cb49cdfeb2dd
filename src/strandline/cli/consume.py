"""`strandline consume`: events as lines of JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click
import msgspec

from strandline.cli.target import Target, on_target
from strandline.log import Batch, CursorText
from strandline.log.room import Start


@click.command()
@click.argument("name")
@click.option(
    "--start",
    "starts",
    multiple=True,
    metavar="WHERE",
    help="BEGIN (default), END, PARTITION=OFFSET (may be repeated), or cursors as JSON.",
)
@click.option("--follow", is_flag=True, help="Wait for new events at the end, until Ctrl-C.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N events.")
@click.option("--cursors", is_flag=True, help="Print batches, each with the cursor to continue from.")
@on_target
def consume(
    target: Target, name: str, starts: tuple[str, ...], limit: int | None, *, follow: bool, cursors: bool
) -> None:
    """Print the events of event type NAME, one JSON object per line.

    Stops at the end that NAME had when the command started. The events of a partition are printed in order. With
    --cursors a line is {"cursor": {...}, "events": [...]}; --start with such a cursor continues after that batch.
    """
    start = _start(starts)
    with target.open() as rooms:
        try:
            _print(rooms.log.read(name, start, follow=follow, limit=limit), cursors=cursors)
        except KeyboardInterrupt:
            if not follow:
                raise


def _start(texts: tuple[str, ...]) -> Start:
    if not texts:
        return "BEGIN"
    if len(texts) == 1 and texts[0].upper() in {"BEGIN", "END"}:
        return texts[0]
    return [cursor for text in texts for cursor in _cursors(text)]


def _cursors(text: str) -> list[CursorText]:
    if text.lstrip().startswith(("[", "{")):
        try:
            found = msgspec.json.decode(text, type=list[CursorText] | CursorText)
        except msgspec.MsgspecError as error:
            raise click.BadParameter(f"not a cursor: {error}", param_hint="--start") from None
        return found if isinstance(found, list) else [found]
    partition, equals, offset = text.partition("=")
    if not equals:
        raise click.BadParameter(
            f'{text!r} is not BEGIN, END, PARTITION=OFFSET or {{"partition": "0", "offset": "BEGIN"}}',
            param_hint="--start",
        )
    return [CursorText(partition, offset)]


def _print(batches: Iterable[Batch], *, cursors: bool) -> None:
    out = sys.stdout.buffer
    for batch in batches:
        # JSON can contain line ends between tokens; an output line must not contain any.
        values = [value.replace(b"\n", b" ").replace(b"\r", b" ") for value in batch.values]
        if cursors:
            out.write(b'{"cursor":%b,"events":[%b]}\n' % (msgspec.json.encode(batch.cursor), b",".join(values)))
        else:
            out.write(b"\n".join(values) + b"\n")
        out.flush()
