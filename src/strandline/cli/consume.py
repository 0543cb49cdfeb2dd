"""`strandline consume`: events as lines of JSON."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator

import click
import msgspec
import pyarrow.compute as pc

from strandline.cli.target import Target, on_target
from strandline.clock import parse_rfc3339, to_rfc3339
from strandline.log import Batch, CursorText, Log
from strandline.log.cursors import Position
from strandline.log.room import Start
from strandline.log.subscriptions.model import ReadFrom
from strandline.log.subscriptions.room import Consumer

_is_time = re.compile(r"\d{4}-\d\d-\d\d[Tt ]").match
# How long a group without new events is waited for before it is asked whether it has read everything.
_IDLE_SECONDS = 0.2


@click.command()
@click.argument("name")
@click.option(
    "--start",
    "starts",
    multiple=True,
    metavar="WHERE",
    help="BEGIN (default), END, a time like 2024-05-01T12:00:00Z, PARTITION=OFFSET (may be repeated), or cursors "
    "as JSON.",
)
@click.option("--group", metavar="GROUP", help="Read as this consumer group, and commit what was printed.")
@click.option("--follow", is_flag=True, help="Wait for new events at the end, until Ctrl-C.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N events.")
@click.option("--cursors", is_flag=True, help="Print batches, each with the cursor to continue from.")
@click.option("--with-metadata", is_flag=True, help="Print partition, offset, time and key of every event, too.")
@on_target
def consume(
    target: Target,
    name: str,
    starts: tuple[str, ...],
    group: str | None,
    limit: int | None,
    *,
    follow: bool,
    cursors: bool,
    with_metadata: bool,
) -> None:
    """Print the events of event type NAME, one JSON object per line.

    Stops at the end that NAME had when the command started. The events of a partition are printed in order. With
    --cursors a line is {"cursor": {...}, "events": [...]}; --start with such a cursor continues after that batch.
    With --with-metadata a line is {"partition": …, "offset": …, "timestamp": …, "key": …, "event": {...}}.

    With --group the command shares the partitions with other readers of the group, starts at the committed
    cursors, and stops when the group has read everything. --start BEGIN or END says where a new group starts. An
    event that was printed by a command that was killed may be printed again.
    """
    if cursors and with_metadata:
        raise click.UsageError("give --cursors or --with-metadata, not both", click.get_current_context())
    read_from = _read_from(starts) if group is not None else "begin"
    start = _start(starts)
    with target.open() as rooms:
        try:
            if group is not None:
                batches = _of_group(rooms.log, name, group, read_from, limit=limit, follow=follow)
            else:
                batches = _of_all(rooms.log, name, start, limit=limit, follow=follow)
            for batch in batches:
                _print(batch, cursors=cursors, with_metadata=with_metadata)
        except KeyboardInterrupt:
            if not follow:
                raise


# -- where to start


def _start(texts: tuple[str, ...]) -> Start:
    if not texts:
        return "BEGIN"
    if len(texts) == 1 and (texts[0].upper() in {"BEGIN", "END"} or _is_time(texts[0])):
        return texts[0]
    return [cursor for text in texts for cursor in _cursors(text)]


def _read_from(texts: tuple[str, ...]) -> ReadFrom:
    places: dict[tuple[str, ...], ReadFrom] = {(): "begin", ("BEGIN",): "begin", ("END",): "end"}
    found = places.get(tuple(text.upper() for text in texts))
    if found is None:
        text = (
            "with --group, --start is BEGIN or END; `strandline subscriptions reset` moves the cursors of a group"
        )
        raise click.UsageError(text, click.get_current_context())
    return found


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
            f'{text!r} is not BEGIN, END, a time, PARTITION=OFFSET or {{"partition": "0", "offset": "BEGIN"}}',
            param_hint="--start",
        )
    return [CursorText(partition, offset)]


# -- reading


def _of_all(log: Log, name: str, start: Start, *, limit: int | None, follow: bool) -> Iterator[Batch]:
    if not isinstance(start, str) or not _is_time(start):
        return log.read(name, start, follow=follow, limit=limit)
    try:
        since_ms = parse_rfc3339(start)
    except ValueError as error:
        raise click.BadParameter(f"{start!r} is not a time: {error}", param_hint="--start") from None
    return _limited(_since(log.read(name, follow=follow), since_ms), limit)


def _since(batches: Iterable[Batch], since_ms: int) -> Iterator[Batch]:
    """The records of this time or later."""
    for batch in batches:
        late = batch.records.filter(pc.greater_equal(batch.records["timestamp"], since_ms))
        if late.num_rows:
            yield dataclasses.replace(batch, records=late)


def _limited(batches: Iterable[Batch], limit: int | None) -> Iterator[Batch]:
    left = limit
    for batch in batches:
        yield batch if left is None else dataclasses.replace(batch, records=batch.records.slice(0, left))
        left = None if left is None else left - len(batch)
        if left is not None and left <= 0:
            return


def _of_group(
    log: Log, name: str, group: str, read_from: ReadFrom, *, limit: int | None, follow: bool
) -> Iterator[Batch]:
    """Batches for a group, each committed when the next one is asked for."""
    left = limit
    with log.subscribe([name], group=group, read_from=read_from) as consumer:
        while left is None or left > 0:
            batch = consumer.receive(None if follow else _IDLE_SECONDS)
            if batch is not None:
                if left is not None:
                    batch = dataclasses.replace(batch, records=batch.records.slice(0, left))
                yield batch
                consumer.commit(batch)
                left = None if left is None else left - len(batch)
            elif not follow and _has_read_everything(log, consumer):
                return


def _has_read_everything(log: Log, consumer: Consumer) -> bool:
    found = log.subscriptions.stats(str(consumer.subscription.id))
    return not any(part.unconsumed_events for kind in found for part in kind.partitions)


# -- printing


def _print(batch: Batch, *, cursors: bool, with_metadata: bool) -> None:
    out = sys.stdout.buffer
    # JSON can contain line ends between tokens; an output line must not contain any.
    values = [value.replace(b"\n", b" ").replace(b"\r", b" ") for value in batch.values]
    if cursors:
        out.write(b'{"cursor":%b,"events":[%b]}\n' % (msgspec.json.encode(batch.cursor), b",".join(values)))
    elif with_metadata:
        out.write(b"".join(_with_metadata(batch, values)))
    else:
        out.write(b"\n".join(values) + b"\n")
    out.flush()


def _with_metadata(batch: Batch, values: list[bytes]) -> Iterator[bytes]:
    columns = (batch.records[column].to_pylist() for column in ("offset", "timestamp", "key"))
    for value, offset, timestamp, key in zip(values, *columns, strict=True):
        yield (
            msgspec.json.encode(
                {
                    "partition": batch.partition,
                    "offset": str(Position(batch.timeline, offset)),
                    "timestamp": to_rfc3339(timestamp),
                    "key": None if key is None else key.decode(errors="replace"),
                    "event": msgspec.Raw(value),
                }
            )
            + b"\n"
        )
