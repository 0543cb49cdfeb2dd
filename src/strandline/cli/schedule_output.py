"""Schedules, messages, leases and counts as tables or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from strandline.cli import output
from strandline.cli.target import Target
from strandline.clock import to_rfc3339
from strandline.schedule import Lease, LeasedMessage, Schedule
from strandline.schedule.message import value_of
from strandline.schedule.model import Body, ItemAnswer, LoadCounts, StoredMessage
from strandline.schedule.refusals import is_done

_BAR = 40
# Later times have five digits in their year.
_LAST_MS = 253_402_300_799_999


def _time_text(ms: int) -> str:
    return to_rfc3339(ms) if ms <= _LAST_MS else str(ms)


def print_schedules(target: Target, found: Sequence[Schedule]) -> None:
    target.print_table(
        found,
        ("name", "buckets", "horizon", "longest lease", "largest body", "dedupe", "attempts"),
        (
            (
                one.name,
                one.buckets,
                output.duration_text(one.max_future_ms),
                output.duration_text(one.max_lease_ms),
                one.max_body_bytes,
                output.duration_text(one.dedupe_ms),
                one.max_attempts,
            )
            for one in found
        ),
        "no schedules yet; create one with `strandline schedule create NAME`",
    )


def print_settings(target: Target, found: Schedule) -> None:
    values: dict[str, Any] = msgspec.to_builtins(found)
    rows = [
        (name.removesuffix("_ms"), output.duration_text(one) if name.endswith("_ms") else one)
        for name, one in values.items()
    ]
    target.print_table(found, ("setting", "value"), rows)


def print_message(target: Target, found: StoredMessage | Lease) -> None:
    message = found.message if isinstance(found, Lease) else found
    value: dict[str, Any] = msgspec.to_builtins(message)
    rows = [(name, _time_text(one) if name.endswith("_ms") else one) for name, one in value.items()]
    if isinstance(found, Lease):
        value |= _body(found.body)
        rows += [(name, msgspec.json.encode(one).decode()) for name, one in _body(found.body).items()]
    target.print_table(value, ("field", "value"), rows)


def _body(body: Body) -> dict[str, Any]:
    return {"body" if body.is_json else "body_base64": value_of(body)}


def print_messages(target: Target, found: Iterator[StoredMessage], limit: int, empty: str = "no messages") -> None:
    shown = [*islice(found, limit)]
    target.print_table(
        shown,
        ("id", "group", "due (UTC)", "until (UTC)", "consumer", "deliveries"),
        (
            (
                one.id,
                one.producer_group,
                _time_text(one.due_ms),
                None if one.consumer is None else _time_text(one.at_ms),
                one.consumer,
                one.delivery_count,
            )
            for one in shown
        ),
        empty,
    )
    if not target.as_json and next(found, None) is not None:
        print(f"only the first {limit} messages are shown; see --limit")


def print_counts(target: Target, found: LoadCounts, *, by_steps: bool) -> None:
    if target.as_json:
        output.print_json(_counts(found, by_steps=by_steps))
        return
    states = (("waiting", found.waiting), ("processing", found.processing), ("available", found.available))
    output.print_table(("state", "messages"), (*states, ("total", found.total)))
    if len(found.steps) > 1:
        most = max(1, *(step.total for step in found.steps))
        rows = (
            (_time_text(step.from_ms)[:19], step.total, "█" * -(-step.total * _BAR // most))
            for step in found.steps
        )
        output.print_table(("from (UTC)", "messages", ""), rows)


def _counts(found: LoadCounts, *, by_steps: bool) -> dict[str, Any]:
    """The names are those of the HTTP API."""
    value: dict[str, Any] = msgspec.to_builtins(found)
    steps = [{"from": step.pop("from_ms"), **step} for step in value.pop("steps")]
    return value | ({"steps": steps} if by_steps else {})


def print_lease(lease: LeasedMessage) -> None:
    """Print a leased message as a line of JSON, and flush it: it may be deleted then."""
    members = {
        "id": lease.id,
        "producer_group": lease.group,
        "due_at_ms": lease.due_at_ms,
        "delivery_count": lease.delivery_count,
        **_body(lease.content),
    }
    sys.stdout.buffer.write(msgspec.json.encode(members) + b"\n")
    sys.stdout.buffer.flush()


def print_answers(target: Target, answers: Iterable[ItemAnswer], done: str) -> None:
    answers = [*answers]
    rows = (
        (
            one.id,
            done if is_done(one) else one.code,
            None if one.at_ms is None else _time_text(one.at_ms),
            None if is_done(one) else one.detail,
        )
        for one in answers
    )
    target.print_table(answers, ("id", "result", "due (UTC)", "detail"), rows, "no messages")
