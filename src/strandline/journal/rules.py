"""What a writer may ask for: pure functions that complete a request or refuse it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, get_args

import msgspec

from strandline.engine import json_values
from strandline.errors import Invalid
from strandline.journal.model import MAX_EXPIRY_MS, MAX_ID, MAX_SEQ_NR, NewEvent, Payload, PayloadKind
from strandline.journal.nesting import MAX_NESTING, is_too_deep
from strandline.log import cursors
from strandline.log.cursors import Position

_MAX_APPEND_ID = 255
_KINDS = get_args(PayloadKind)
# A `Raw` inside a value may hold anything.
_check_raw = msgspec.json.Decoder(msgspec.Raw).decode


def numbered(events: Sequence[NewEvent | Any], expected: int | None) -> list[NewEvent]:
    """The events with their seqNrs, which rise and are above `expected`."""
    complete = new_events(events)
    if expected is not None:
        check_number("expected", expected)
    without = [event.seq_nr for event in complete].count(None)
    if without == len(complete):
        complete = _numbered_from(complete, expected)
    elif without:
        raise Invalid("either all events of an append have a seq_nr, or none")
    _check_numbers([event.seq_nr or 0 for event in complete], expected)
    return complete


def new_events(given: Sequence[NewEvent | Any]) -> list[NewEvent]:
    """The events of an append, in any sequence but a text or an object, whose parts are hardly meant as events."""
    if not isinstance(given, list) and (
        isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable)
    ):
        raise Invalid(f"the events of an append must be a list, not {given!r:.40}")
    events = [event(one) for one in given]
    if not events:
        raise Invalid("an append needs at least one event")
    return events


def _numbered_from(events: list[NewEvent], expected: int | None) -> list[NewEvent]:
    if expected is None:
        raise Invalid("seq_nr can be left out only if expected is given")
    return [msgspec.structs.replace(event, seq_nr=n) for n, event in enumerate(events, expected + 1)]


def _check_numbers(numbers: Sequence[int], expected: int | None) -> None:
    for number in numbers:
        check_number("a seq_nr", number, least=1)
    if len(numbers) > 1 and not all(a < b for a, b in pairwise(numbers)):
        raise Invalid("the seq_nrs of an append must rise")
    if expected is not None and numbers[0] <= expected:
        raise Invalid(f"seq_nr {numbers[0]} is not above expected, {expected}")


def event(given: NewEvent | Any) -> NewEvent:
    """A new event as it is, or any other value as the JSON payload of one."""
    if not isinstance(given, NewEvent):
        return NewEvent(payload(given))
    check_payload(given.payload)
    if not isinstance(given.tags, list | tuple):
        raise Invalid(f"the tags of an event must be a list of texts, not {given.tags!r:.40}")
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
    if given is None:
        return
    if not isinstance(given, Payload) or given.kind not in _KINDS or not isinstance(given.data, bytes | bytearray):
        raise Invalid(f"the payload of an event is a Payload with a kind and bytes, not {given!r:.80}")
    if given.kind == "binary":
        return
    if given.kind == "json":
        _check_json(given.data)
        return
    try:
        given.data.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"a text payload must be UTF-8: {error}") from None


def _check_json(text: bytes) -> None:
    """Check the syntax only: JSON has numbers that are no values of Python."""
    _check_nesting(text, "the payload")
    try:
        text.decode()  # the decoder does not look into the strings of raw values
        _check_raw(text)
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(f"the payload is not JSON: {error}") from None


def json_of(value: Any, what: str) -> bytes:
    try:
        text = json_values.encode(value)
        text.decode()
        _check_raw(text)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"{what} cannot be written as JSON: {error}") from None
    _check_nesting(text, what)
    return text


def _check_nesting(text: bytes, what: str) -> None:
    if is_too_deep(text):
        raise Invalid(f"{what} has more than {MAX_NESTING} arrays and objects inside each other")


def entity(given: str) -> str:
    """The id of a journal. Invalid if it cannot be one."""
    _check_text(given, "the id of a journal")
    if not 1 <= len(given) <= MAX_ID:
        raise Invalid(f"the id of a journal has 1 to {MAX_ID} characters, not {len(given)}")
    return given


def seq_nr(given: int) -> int:
    check_number("a seq_nr", given, least=1)
    return given


def check_number(name: str, number: int, *, least: int = 0, most: int = MAX_SEQ_NR) -> None:
    """Invalid if it is not a whole number in this range. In a read, 0 is before all events."""
    # True is an int of Python and 1.0 equals 1, but a record that holds them cannot be decoded.
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise Invalid(f"{name} must be a whole number from {least} to {most}, not {number!r:.40}")


def check_range(first: int, last: int | None, limit: int | None) -> None:
    """Check what a read asks for."""
    check_number("from", first)
    for name, number in (("to", last), ("limit", limit)):
        if number is not None:
            check_number(name, number)


def check_append_id(append_id: str) -> None:
    _check_text(append_id, "an append id")
    if not 1 <= len(append_id) <= _MAX_APPEND_ID:
        raise Invalid(f"an append id has 1 to {_MAX_APPEND_ID} characters, not {len(append_id)}")


def check_expiry(expire_after_ms: int | None) -> None:
    if expire_after_ms is not None:
        check_number("expire_after, in milliseconds,", expire_after_ms, most=MAX_EXPIRY_MS)


def life(since: str | None) -> Position | None:
    """The life that a writer saw. Invalid if it is not the cursor of an action."""
    if since is None:
        return None
    _check_text(since, "since")
    found = cursors.parse(since)
    if found is None:  # a check that can never fail would hide a mistake of the writer
        raise Invalid(f"since must be the cursor of an action, as a pointer has it, not {since!r}")
    return found


def _check_text(text: str, what: str) -> None:
    if not isinstance(text, str):
        raise Invalid(f"{what} must be a text, not {text!r:.40}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{what} must be valid Unicode, not {text!r:.80}") from None
