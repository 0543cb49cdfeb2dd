"""What a writer may ask for: pure functions that complete a request or refuse it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from strandline.engine import json_values
from strandline.errors import Invalid
from strandline.journal.model import MAX_SEQ_NR, NewEvent, Payload
from strandline.log import cursors
from strandline.log.cursors import Position
from strandline.log.event_json import decode_event

_MAX_MS = 2**53
_MAX_APPEND_ID = 255
_MAX_ID = 255


def numbered(events: Sequence[NewEvent | Any], expected: int | None) -> list[NewEvent]:
    """The events with their seqNrs, which rise and are above `expected`."""
    complete = [event(given) for given in events]
    if not complete:
        raise Invalid("an append needs at least one event")
    if expected is not None and not (isinstance(expected, int) and 0 <= expected <= MAX_SEQ_NR):
        raise Invalid(f"expected must be a whole number from 0 to {MAX_SEQ_NR}, not {expected!r:.40}")
    without = sum(event.seq_nr is None for event in complete)
    if without == len(complete):
        complete = _numbered_from(complete, expected)
    elif without:
        raise Invalid("either all events of an append have a seq_nr, or none")
    _check_numbers([event.seq_nr or 0 for event in complete], expected)
    return complete


def _numbered_from(events: list[NewEvent], expected: int | None) -> list[NewEvent]:
    if expected is None:
        raise Invalid("seq_nr can be left out only if expected is given")
    return [msgspec.structs.replace(event, seq_nr=n) for n, event in enumerate(events, expected + 1)]


def _check_numbers(numbers: Sequence[int], expected: int | None) -> None:
    if not all(1 <= number <= MAX_SEQ_NR for number in numbers):
        raise Invalid(f"a seq_nr must be 1 to {MAX_SEQ_NR}")
    if not all(a < b for a, b in pairwise(numbers)):
        raise Invalid("the seq_nrs of an append must rise")
    if expected is not None and numbers[0] <= expected:
        raise Invalid(f"seq_nr {numbers[0]} is not above expected, {expected}")


def event(given: NewEvent | Any) -> NewEvent:
    """A new event as it is, or any other value as the JSON payload of one."""
    if not isinstance(given, NewEvent):
        return NewEvent(payload(given))
    check_payload(given.payload)
    for tag in given.tags:
        _check_text(tag, "a tag")
    return given


def payload(value: Payload | Any) -> Payload:
    """A payload as it is, or any other value as JSON."""
    if isinstance(value, Payload):
        check_payload(value)
        return value
    return Payload("json", json_of(value, "the payload"))


def check_payload(given: Payload | None) -> None:
    if given is None or given.kind == "binary":
        return
    if given.kind == "json":
        decode_event(given.data)
        return
    try:
        given.data.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"a text payload must be UTF-8: {error}") from None


def json_of(value: Any, what: str) -> bytes:
    try:
        return json_values.encode(value)
    except (TypeError, ValueError, UnicodeError, RecursionError) as error:
        raise Invalid(f"{what} cannot be written as JSON: {error}") from None


def entity(given: str) -> str:
    """The id of a journal. Invalid if it cannot be one."""
    if not 1 <= len(given) <= _MAX_ID:
        raise Invalid(f"the id of a journal has 1 to {_MAX_ID} characters, not {len(given)}")
    _check_text(given, "the id of a journal")
    return given


def seq_nr(given: int) -> int:
    if not 1 <= given <= MAX_SEQ_NR:
        raise Invalid(f"a seq_nr must be 1 to {MAX_SEQ_NR}, not {given}")
    return given


def check_number(name: str, number: int) -> None:
    """Check a number of a read, in which 0 is before all events."""
    if not 0 <= number <= MAX_SEQ_NR:
        raise Invalid(f"{name} must be 0 to {MAX_SEQ_NR}, not {number}")


def check_append_id(append_id: str) -> None:
    if not 1 <= len(append_id) <= _MAX_APPEND_ID:
        raise Invalid(f"an append id has 1 to {_MAX_APPEND_ID} characters, not {len(append_id)}")
    _check_text(append_id, "an append id")


def check_expiry(expire_after_ms: int | None) -> None:
    if expire_after_ms is not None and not 0 <= expire_after_ms <= _MAX_MS:
        raise Invalid(f"expire_after must be 0 to {_MAX_MS} milliseconds, not {expire_after_ms}")


def life(since: str | None) -> Position | None:
    """The life that a writer saw. Invalid if it is not the cursor of an action."""
    if since is None:
        return None
    found = cursors.parse(since)
    if found is None:  # a check that can never fail would hide a mistake of the writer
        raise Invalid(f"since must be the cursor of an action, as a pointer has it, not {since!r}")
    return found


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{what} must be valid Unicode, not {text!r:.80}") from None
