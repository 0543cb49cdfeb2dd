"""`strandline schedule …`: schedules and their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, get_args

import click
import msgspec

from strandline.cli import inputs, output, schedule_output
from strandline.cli.failures import FAILED
from strandline.cli.group import Group
from strandline.cli.target import Target, on_target, yes_option
from strandline.clock import parse_rfc3339, system_clock
from strandline.errors import Conflict, Forbidden, Invalid, NotFound, StrandlineError
from strandline.schedule import ListQuery, Message, NewMessage, OwnerAct, Schedule, ScheduleMessages, moment_of
from strandline.schedule.model import DEAD, ItemAnswer, MessageState, Moment
from strandline.schedule.refusals import is_done, raise_for_failed
from strandline.schedule.relay.values import RelayLetterView
from strandline.schedule.room import LEASE_MS
from strandline.schedule.rules import MAX_MS

_BATCH = 500
_STEPS_SHOWN = 24

# For errors whose text names no next step.
_NEXT_STEPS: tuple[tuple[type[StrandlineError], str], ...] = (
    (NotFound, "see `strandline schedule messages NAME`"),
    (Forbidden, "name the producer group that created it with --group"),
    (Conflict, "see `strandline schedule show NAME ID`"),
)


@click.group(cls=Group)
def schedule() -> None:
    """Put messages at a moment in time, look ahead, and consume what is due."""


@contextmanager
def _messages(target: Target, name: str) -> Iterator[ScheduleMessages]:
    """The messages of a schedule. Errors get a next step that fits to schedules."""
    with target.open() as rooms:
        try:
            yield rooms.schedule(name)
        except StrandlineError as error:
            step = next((step for kind, step in _NEXT_STEPS if isinstance(error, kind)), None)
            if step is None or "; " in error.detail:
                raise
            raise type(error)(f"{error.detail}; {step}", **error.info) from error


# -- options


def _time(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """A click callback: a time or milliseconds as milliseconds."""
    if text is None:
        return None
    try:
        return int(text) if text.isdecimal() else parse_rfc3339(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time; write 2026-11-15T12:00:00Z or milliseconds, UTC"
        ) from None


def _moment_options(command: Callable[..., Any]) -> Callable[..., Any]:
    at = click.option("--at", callback=_time, metavar="TIME", help="Due at this time: 2026-11-15T12:00:00Z or ms.")
    later = click.option("--in", "in_ms", callback=output.to_ms, metavar="DURATION", help="Due after it: 3d, 36h.")
    return at(later(command))


def _settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--max-future", "max_future_ms", callback=output.to_ms, help="Furthest moment from now."),
        click.option("--max-lease", "max_lease_ms", callback=output.to_ms, help="Longest lease."),
        click.option("--max-body-bytes", type=click.IntRange(min=0), help="Largest body."),
        click.option("--dedupe", "dedupe_ms", callback=output.to_ms, help="How long a deleted id stays taken."),
        click.option("--max-attempts", type=click.IntRange(min=1), help="Deliveries before a message is dead."),
    ):
        command = option(command)
    return command


_group = click.option(
    "--group", default="default", show_default=True, help="Producer group that owns the messages."
)
_ids = click.argument("ids", nargs=-1, required=True, metavar="ID...")


def _moment(at: int | None, in_ms: int | None) -> Moment:
    try:
        return moment_of(at=at, in_ms=in_ms)
    except Invalid:
        raise click.UsageError("give a moment with --at or --in", click.get_current_context()) from None


# -- schedules


@schedule.command("list")
@on_target
def list_schedules(target: Target) -> None:
    """Show all schedules."""
    with target.open() as rooms:
        found = rooms.schedules.all()
    schedule_output.print_schedules(target, found)


@schedule.command()
@click.argument("name")
@click.argument("message_id", metavar="[ID]", required=False)
@click.option("--group", help="Show the body too, as the producer group that owns the message.")
@on_target
def show(target: Target, name: str, message_id: str | None, group: str | None) -> None:
    """Show the settings of schedule NAME, or its message ID."""
    with _messages(target, name) as messages:
        if message_id is not None and group is not None:
            schedule_output.print_message(target, messages.read(OwnerAct(message_id, group)))
        elif message_id is not None:
            schedule_output.print_message(target, messages.get(message_id))
    if message_id is None:
        with target.open() as rooms:
            schedule_output.print_settings(target, rooms.schedules.get(name))


@schedule.command()
@click.argument("name")
@click.option("--buckets", type=click.IntRange(min=1), help="Parts that are dealt to consumers; never changes.")
@_settings_options
@on_target
def create(target: Target, name: str, **settings: Any) -> None:
    """Create schedule NAME. No effect if it exists with the same settings."""
    given = {key: value for key, value in settings.items() if value is not None}
    with target.open() as rooms:
        try:
            rooms.schedules.create(Schedule(name, **given))
        except Conflict as error:
            raise Conflict(
                f"the schedule {name} exists with other settings; see them with `strandline schedule show {name}` "
                f"and change them with `strandline schedule update {name}`"
            ) from error
        made = rooms.schedules.get(name)
    target.print_done(f"created {name}", made)


@schedule.command()
@click.argument("name")
@_settings_options
@on_target
def update(target: Target, name: str, **settings: Any) -> None:
    """Change settings of schedule NAME; those that are not given stay as they are."""
    given = {key: value for key, value in settings.items() if value is not None}
    if not given:
        raise click.UsageError("there is nothing to change", click.get_current_context())
    with target.open() as rooms:
        changed = msgspec.structs.replace(rooms.schedules.get(name), **given)
        rooms.schedules.put(changed)
    target.print_done(f"updated {name}", changed)


@schedule.command()
@click.argument("name")
@yes_option
@on_target
def delete(target: Target, name: str, *, yes: bool) -> None:
    """Delete schedule NAME with all its messages."""
    target.confirm(f"Delete the schedule {name} with all its messages?", yes=yes)
    with target.open() as rooms:
        rooms.schedules.delete(name)
    target.print_done(f"deleted {name}", {"deleted": name})


# -- messages


@schedule.command()
@click.argument("name")
@click.argument("body", required=False)
@click.option(
    "--file", type=click.File("rb"), help="One JSON body per line, each for a message; - is standard input."
)
@click.option("--id", "message_id", metavar="ID", help="Id of the message; default: a new one.")
@_group
@_moment_options
@on_target
def put(
    target: Target, name: str, body: str | None, file: BinaryIO | None, message_id: str | None, **options: Any
) -> int:
    """Put a message with the JSON text BODY on schedule NAME, due now or at a moment.

    A message that exists with the same id, group and body is not stored again.
    """
    if (body is None) == (file is None) or (file is not None and message_id is not None):
        raise click.UsageError(
            "give either a BODY or a --file, and --id only with a BODY", click.get_current_context()
        )
    moment = Moment(0, relative=True)
    if options["at"] is not None or options["in_ms"] is not None:
        moment = _moment(options["at"], options["in_ms"])
    group = options["group"]
    if file is None:
        new: Iterator[NewMessage] = iter([_message(str(body).encode(), group, moment, message_id)])
    else:
        new = (_message(line.text, group, moment) for line in inputs.events(file))
    with _messages(target, name) as messages:
        answers = [answer for batch in _batches(new) for answer in messages.create(batch)]
        return _finish(target, answers, "put")


def _message(text: bytes, group: str, moment: Moment, message_id: str | None = None) -> NewMessage:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Invalid(
            f"the body {text.decode(errors='replace')!r:.60} is not JSON: {error}; quote texts twice"
        ) from error
    return msgspec.structs.replace(Message(value, group=group, id=message_id), moment=moment)


def _batches(new: Iterator[NewMessage]) -> Iterator[list[NewMessage]]:
    batch: list[NewMessage] = []
    for message in new:
        batch.append(message)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


@schedule.command()
@click.argument("name")
@_ids
@_group
@_moment_options
@on_target
def move(target: Target, name: str, ids: Sequence[str], group: str, at: int | None, in_ms: int | None) -> int:
    """Move messages of schedule NAME to another moment. Messages under a lease cannot be moved."""
    moment = _moment(at, in_ms)
    with _messages(target, name) as messages:
        return _finish(target, messages.move([OwnerAct(one, group, moment=moment) for one in ids]), "moved")


@schedule.command()
@click.argument("name")
@_ids
@_group
@yes_option
@on_target
def cancel(target: Target, name: str, ids: Sequence[str], group: str, *, yes: bool) -> int:
    """Delete messages of schedule NAME. Messages under a lease cannot be cancelled.

    NAME.dead stands for the dead messages of NAME.
    """
    target.confirm(f"Delete {output.counted(len(ids), 'message')} of the schedule {name}?", yes=yes)
    with _messages(target, name) as messages:
        return _finish(target, messages.delete([OwnerAct(one, group) for one in ids]), "cancelled")


@schedule.command("messages")
@click.argument("name")
@click.option("--group", help="Only messages of this producer group.")
@click.option("--consumer", help="Only messages that this consumer holds.")
@click.option("--state", type=click.Choice(get_args(MessageState)), help="Only messages in this state.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Most messages to show.")
@on_target
def list_messages(
    target: Target, name: str, group: str | None, consumer: str | None, state: MessageState | None, limit: int
) -> None:
    """List the messages of schedule NAME by id. NAME.dead stands for its dead messages."""
    if group is not None and consumer is not None:
        raise click.UsageError("give --group or --consumer, not both", click.get_current_context())
    query = ListQuery(group, consumer, state, limit=limit)
    with _messages(target, name) as messages:
        schedule_output.print_messages(target, messages.list(query), limit)


@schedule.command("counts")
@click.argument("name")
@click.option("--from", "from_ms", callback=_time, metavar="TIME", help="Start; default: now with --step.")
@click.option("--to", "to_ms", callback=_time, metavar="TIME", help="End, not included; default: 24 steps.")
@click.option("--step", "step_ms", callback=output.to_ms, metavar="DURATION", help="Also count by steps: 1h, 5m.")
@on_target
def counts(target: Target, name: str, from_ms: int | None, to_ms: int | None, step_ms: int | None) -> None:
    """Count the messages of schedule NAME by state, in a range of time and by steps: the load ahead."""
    if step_ms is not None:
        now_ms = system_clock().now_ms()
        from_ms = now_ms - now_ms % max(1, step_ms) if from_ms is None else from_ms
        to_ms = min(from_ms + _STEPS_SHOWN * step_ms, MAX_MS) if to_ms is None else to_ms
    with _messages(target, name) as messages:
        found = messages.counts(from_ms or 0, MAX_MS if to_ms is None else to_ms, step_ms)
    schedule_output.print_counts(target, found, by_steps=step_ms is not None)


@schedule.command("consume")
@click.argument("name")
@click.option("--consumer", default="cli", show_default=True, help="Name of the consumer; give each its own.")
@click.option("--lease", "lease_ms", callback=output.to_ms, default=f"{LEASE_MS}ms", help="Length of the leases.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@click.option("--follow", is_flag=True, help="Wait for messages that become due, until Ctrl-C.")
@click.option("--wait", "wait_ms", callback=output.to_ms, default="1s", help="How long to wait without --follow.")
@click.option("--release", "release_ms", callback=output.to_ms, help="Do not delete; due again after it: 5m.")
@on_target
def consume(target: Target, name: str, consumer: str, **options: Any) -> None:
    """Print due messages of schedule NAME, one JSON object per line, and delete each after it is printed."""
    follow, release_ms, left = options["follow"], options["release_ms"], options["limit"]
    timeout = None if follow else options["wait_ms"] / 1000
    with _messages(target, name) as messages, messages.consume(consumer, lease_ms=options["lease_ms"]) as leases:
        try:
            while left != 0 and (lease := leases.receive(timeout)) is not None:
                schedule_output.print_lease(lease)
                if release_ms is None:
                    lease.delete()
                else:
                    lease.release(in_ms=release_ms)
                left = None if left is None else left - 1
        except KeyboardInterrupt:
            if not follow:
                raise


# -- dead messages


@schedule.command("dead")
@click.argument("name")
@click.option("--group", help="Only messages of this producer group.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Most messages to show.")
@on_target
def dead(target: Target, name: str, group: str | None, limit: int) -> None:
    """List the dead messages of schedule NAME: those that were delivered `max_attempts` times."""
    with _messages(target, name + DEAD) as messages:
        found = messages.list(ListQuery(group, limit=limit))
        schedule_output.print_messages(target, found, limit, "no dead messages")


@schedule.command("relay-dead")
@click.argument("name")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Most events to show.")
@click.option("--after", default="", metavar="ID", help="Only events after this id.")
@on_target
def relay_dead(target: Target, name: str, limit: int, after: str) -> None:
    """List the events that the relay of schedule NAME could not relay."""
    with target.open() as rooms:
        found = rooms.schedules.relay_letters(name, limit=limit, after=after)
    rows = [(one.id, one.partition, one.cursor, one.reason) for one in found]
    value = [RelayLetterView.of(one) for one in found]
    target.print_table(value, ("id", "partition", "cursor", "reason"), rows, "no dead letters")


@schedule.command("put-back")
@click.argument("name")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All dead messages of the group.")
@_group
@on_target
def put_back(target: Target, name: str, ids: Sequence[str], group: str, *, everything: bool) -> int:
    """Make dead messages of schedule NAME available again, with no deliveries counted."""
    if bool(ids) == everything:
        raise click.UsageError("give ids or --all", click.get_current_context())
    with _messages(target, name + DEAD) as messages:
        chosen = [one.id for one in messages.list(ListQuery(group, limit=_BATCH))] if everything else ids
        return _finish(target, messages.put_back([OwnerAct(one, group) for one in chosen]), "put back")


def _finish(target: Target, answers: Sequence[ItemAnswer], done: str) -> int:
    """Print the answers. If no item succeeded, the error of the first is raised."""
    failed = [answer for answer in answers if not is_done(answer)]
    if failed and len(failed) == len(answers):
        raise_for_failed(answers)
    schedule_output.print_answers(target, answers, done)
    return FAILED if failed else 0
