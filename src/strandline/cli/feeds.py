"""`strandline feeds …`: look at home timelines and change them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import click

from strandline import logging_setup
from strandline.cli import output
from strandline.cli.group import Group
from strandline.cli.pipeline import application, master_option
from strandline.cli.progress import shown
from strandline.cli.target import Target, on_target, yes_option
from strandline.clock import to_rfc3339
from strandline.feeds import Entry, wire
from strandline.feeds.model import MAX_ID, MAX_TIME, MIN_ID
from strandline.feeds.operation_log import name_of
from strandline.progress import JobProgress

_entry_id = click.IntRange(MIN_ID, MAX_ID)
_feed = click.argument("feed")
_ids = click.argument("ids", metavar="ID...", nargs=-1, required=True, type=_entry_id)
_feeds = click.argument("feeds", metavar="FEED...", nargs=-1, required=True)
_SHOWN_BYTES = 60


def _operation_ms(command: Any) -> Any:
    return click.option(
        "--operation-ms",
        type=click.IntRange(0, MAX_TIME >> 20),
        metavar="MS",
        help="Time of the operation, for a replay; default: now.",
    )(command)


@click.group(cls=Group)
def feeds() -> None:
    """Look at home timelines, append, delete, merge and unmerge entries, and rebuild feeds.

    Write -- before the arguments if an ID is negative.
    """


@feeds.command()
@_feed
@click.option("--offset", type=click.IntRange(min=0), help="Newest entries to skip; default: 0.")
@click.option("--length", type=click.IntRange(min=0), help="Most entries to show; default: 20.")
@click.option("--since", type=_entry_id, metavar="ID", help="Instead: all entries that were added after this one.")
@on_target
def show(target: Target, feed: str, offset: int | None, length: int | None, since: int | None) -> None:
    """Show the entries of FEED, newest first."""
    if since is not None and (offset, length) != (None, None):
        raise click.UsageError("give either --since, or --offset and --length", click.get_current_context())
    with target.open() as rooms:
        if since is None:
            found = rooms.feeds.get(feed, offset or 0, 20 if length is None else length)
        else:
            found = rooms.feeds.get_since(feed, since)
    value = {"entries": wire.entries(found, msgpack=False)}
    target.print_table(value, ("id", "metadata"), [(str(one.id), _text(one)) for one in found], "no entries")


def _text(entry: Entry) -> str | None:
    if entry.metadata is None:
        return None
    text = entry.metadata.decode(errors="replace")
    shown = text if text.isprintable() else entry.metadata.hex(" ")
    return shown if len(shown) <= _SHOWN_BYTES else shown[:_SHOWN_BYTES] + "…"


def _entries(ids: Sequence[int]) -> str:
    return output.counted(len(ids), "entry", "entries")


def _reached(done: str, accepted: int, feeds: Sequence[str]) -> str:
    """How many feeds a write has reached, and why not all of them."""
    missing = len({*feeds}) - accepted
    why = f"; {output.counted(missing, 'feed does', 'feeds do')} not exist" if missing else ""
    return f"{done} {output.counted(accepted, 'feed')}{why}"


@feeds.command()
@click.argument("entry_id", metavar="ID", type=_entry_id)
@_feeds
@click.option("--metadata", help="Metadata of the entry, as text.")
@click.option("--metadata-base64", help="Metadata of the entry, in base64.")
@_operation_ms
@on_target
def append(
    target: Target,
    entry_id: int,
    feeds: Sequence[str],
    metadata: str | None,
    metadata_base64: str | None,
    operation_ms: int | None,
) -> None:
    """Append the entry ID to those of the FEEDs that exist."""
    entry = Entry(entry_id, _metadata(metadata, metadata_base64))
    with target.open() as rooms:
        accepted = rooms.feeds.append(entry, feeds, operation_ms=operation_ms)
    target.print_done(_reached(f"appended {entry_id} to", accepted, feeds), wire.AcceptedFeeds(accepted))


def _metadata(text: str | None, encoded: str | None) -> bytes | None:
    if text is not None and encoded is not None:
        raise click.UsageError("give either --metadata or --metadata-base64", click.get_current_context())
    if encoded is None:
        return None if text is None else text.encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise click.BadParameter(f"it is not base64: {error}", param_hint="--metadata-base64") from error


@feeds.command()
@click.argument("entry_id", metavar="ID", type=_entry_id)
@_feeds
@_operation_ms
@yes_option
@on_target
def delete(target: Target, entry_id: int, feeds: Sequence[str], operation_ms: int | None, *, yes: bool) -> None:
    """Delete the entry ID from the FEEDs for good."""
    target.confirm(f"Delete {entry_id} from {output.counted(len({*feeds}), 'feed')} for good?", yes=yes)
    with target.open() as rooms:
        accepted = rooms.feeds.delete(entry_id, feeds, operation_ms=operation_ms)
    target.print_done(_reached(f"deleted {entry_id} from", accepted, feeds), wire.AcceptedFeeds(accepted))


@feeds.command("set")
@_feed
@click.argument("ids", metavar="[ID]...", nargs=-1, type=_entry_id)
@_operation_ms
@on_target
def set_feed(target: Target, feed: str, ids: Sequence[int], operation_ms: int | None) -> None:
    """Create FEED with the entries ID, or replace its entries."""
    with target.open() as rooms:
        rooms.feeds.set(feed, [*map(Entry, ids)], operation_ms=operation_ms)
    target.print_done(f"set {feed} to {_entries(ids)}", {"set": feed, "entries": len(ids)})


@feeds.command()
@_feed
@_ids
@_operation_ms
@on_target
def merge(target: Target, feed: str, ids: Sequence[int], operation_ms: int | None) -> None:
    """Merge the entries ID into FEED, like a follow. No effect if FEED does not exist."""
    with target.open() as rooms:
        exists = rooms.feeds.merge(feed, [*map(Entry, ids)], operation_ms=operation_ms)
    done = f"merged {_entries(ids)} into {feed}" if exists else f"the feed {feed} does not exist"
    target.print_done(done, wire.AcceptedFeeds(int(exists)))


@feeds.command()
@_feed
@_ids
@_operation_ms
@on_target
def unmerge(target: Target, feed: str, ids: Sequence[int], operation_ms: int | None) -> None:
    """Take the entries ID out of FEED, like an unfollow. No effect if FEED does not exist."""
    with target.open() as rooms:
        exists = rooms.feeds.unmerge(feed, ids, operation_ms=operation_ms)
    done = f"took {_entries(ids)} out of {feed}" if exists else f"the feed {feed} does not exist"
    target.print_done(done, wire.AcceptedFeeds(int(exists)))


@feeds.command()
@_feed
@_operation_ms
@yes_option
@on_target
def drop(target: Target, feed: str, operation_ms: int | None, *, yes: bool) -> None:
    """Remove FEED. Deleted entries stay deleted."""
    target.confirm(f"Remove the feed {feed}?", yes=yes)
    with target.open() as rooms:
        rooms.feeds.drop(feed, operation_ms=operation_ms)
    target.print_done(f"dropped {feed}", {"dropped": feed})


@feeds.command()
@on_target
def replay(target: Target) -> None:
    """Apply recorded operations to a store that was restored from a snapshot. Works on a data directory."""
    with target.open_data() as rooms:
        count = rooms.feeds.replay()
    target.print_done(f"applied {output.counted(count, 'operation')}", {"applied": count})


@feeds.command()
@click.argument("users", metavar="[USER]...", nargs=-1)
@click.option(
    "--keep-authors", is_flag=True, help="The store still has the feeds of authors; do not restore them first."
)
@master_option
@on_target
def rebuild(target: Target, users: Sequence[str], master: str, *, keep_authors: bool) -> None:
    """Set the home feeds of USERs anew, or of everybody who follows: the Spark job `rebuild`.

    The posts come from the log and the archive, the follow graph from the job `fanout`. Works on a data directory.
    """
    run_application = application()
    done = JobProgress("", 0, 0, {})
    with target.open_data() as rooms, shown(as_json=False) as show:

        def on_progress(job: str, progress: JobProgress) -> None:
            nonlocal done
            done = progress
            show(job, progress)

        logging_setup.configure(rooms.settings.logs)
        options = {"users": ",".join(users) or "*", "authors": not keep_authors}
        run_application({"rebuild": options}, rooms, master, on_progress, once=True)
    target.print_done(f"set {output.counted(done.rows, 'home feed')} anew", {"rebuilt": done.rows, **done.details})


@feeds.command()
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Most dead letters to show."
)
@click.option(
    "--after", type=click.IntRange(min=0), default=0, metavar="NUMBER", help="Only dead letters after this number."
)
@on_target
def dead(target: Target, limit: int, after: int) -> None:
    """List the operations that were refused or given up."""
    with target.open() as rooms:
        found = rooms.feeds.dead_letters(limit=limit, after=after)
    rows = [(one.number, to_rfc3339(one.failed_ms), name_of(one.operation), one.reason) for one in found]
    value = [wire.DeadOperationView.of(one) for one in found]
    target.print_table(value, ("number", "time", "operation", "reason"), rows, "no dead letters")


@feeds.command("fanout-dead")
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Most dead letters to show."
)
@click.option("--after", default="", metavar="PLACE", help="Only records after EVENT-TYPE/PARTITION/CURSOR.")
@on_target
def fanout_dead(target: Target, limit: int, after: str) -> None:
    """List the records that the job `fanout` has set aside."""
    with target.open() as rooms:
        found = rooms.feeds.fanout_letters(limit=limit, after=after)
    rows = [(one.source, one.partition, one.cursor, one.reason) for one in found]
    value = [wire.FanoutLetterView.of(one) for one in found]
    target.print_table(value, ("event type", "partition", "cursor", "reason"), rows, "no dead letters")
