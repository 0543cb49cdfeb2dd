"""What a request may ask for: pure functions that return the value or raise Invalid."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

from strandline.errors import Invalid
from strandline.feeds import times
from strandline.feeds.model import MAX_ID, MIN_ID, Entry

NAME_PATTERN = r"^(?!\.{1,2}$)[A-Za-z0-9._:-]{1,255}$"
MAX_FEEDS = 10_000
MAX_ENTRIES = 2_000
MAX_METADATA_BYTES = 65_536
#: Of one answer: 20 entries of as many feeds as a call may name.
MAX_ANSWERED_ENTRIES = 200_000
# More than any feed has.
_MAX_POSITION = 2**31 - 1
_Given = TypeVar("_Given")

_is_name = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:-]{1,255}", re.ASCII).fullmatch


def name(given: str) -> str:
    if not _is_name(given):
        raise Invalid(
            f"{given!r:.80} is not the name of a feed; use 1 to 255 of the characters A-Z a-z 0-9 . _ : - "
            "(but not . or ..)"
        )
    return given


def names(given: Iterable[str]) -> tuple[str, ...]:
    """Each name once, in the order of first mention."""
    if isinstance(given, str):  # it would be a feed for each character
        raise Invalid(f"the feeds of a call must be a list of names, not the text {given!r:.80}")
    found = tuple(dict.fromkeys(map(name, given)))
    if len(found) > MAX_FEEDS:
        raise Invalid(f"a call may name at most {MAX_FEEDS} feeds, not {len(found)}; split it")
    return found


def entry_id(given: int) -> int:
    if not _is_int(given):
        raise Invalid(f"an id must be an integer, not {given!r:.80}")
    if not MIN_ID <= given <= MAX_ID:
        raise Invalid(f"an id must be a number from -2^63 to 2^63-1, not {given}")
    return given


def entry(given: Entry) -> Entry:
    entry_id(given.id)
    if given.metadata is None:
        return given
    if not isinstance(given.metadata, bytes):
        raise Invalid(f"the metadata of entry {given.id} must be bytes or None, not {given.metadata!r:.80}")
    if len(given.metadata) > MAX_METADATA_BYTES:
        raise Invalid(
            f"the metadata of entry {given.id} have {len(given.metadata)} bytes; at most {MAX_METADATA_BYTES} are "
            "allowed"
        )
    return given


def entries(given: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(map(entry, _counted(given)))


def ids(given: Iterable[Entry | int]) -> tuple[int, ...]:
    """The ids of entries, each once. Entries are checked as a whole, as in a merge."""
    found = (entry(one).id if isinstance(one, Entry) else entry_id(one) for one in _counted(given))
    return tuple(dict.fromkeys(found))


def _counted(given: Iterable[_Given]) -> tuple[_Given, ...]:
    found = tuple(given)
    if len(found) > MAX_ENTRIES:
        raise Invalid(f"a call may have at most {MAX_ENTRIES} entries, not {len(found)}; split it")
    return found


def _is_int(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def page(offset: int, length: int) -> tuple[int, int]:
    if not (_is_int(offset) and _is_int(length)):
        raise Invalid(f"offset and length must be integers, not {offset!r:.40} and {length!r:.40}")
    if not (0 <= offset <= _MAX_POSITION and 0 <= length <= _MAX_POSITION):
        raise Invalid(f"offset and length must be 0 to {_MAX_POSITION}, not {offset} and {length}")
    return offset, length


def page_of_many(feeds: int, offset: int, length: int, cap: int) -> tuple[int, int]:
    """A page of several feeds, each with up to `cap` entries. Invalid if the answer may become too large."""
    page(offset, length)
    most = feeds * min(length, cap)
    if most > MAX_ANSWERED_ENTRIES:
        raise Invalid(
            f"{length} entries of {feeds} feeds may be {most} entries; a call may ask for at most "
            f"{MAX_ANSWERED_ENTRIES}; split it into calls with fewer feeds, or read shorter pages"
        )
    return offset, length


def given_time(operation_time: int | None, operation_ms: int | None) -> int | None:
    """The operation time that a caller gives; None if the platform gives one."""
    if operation_time is not None and operation_ms is not None:
        raise Invalid("give either operation_time or operation_ms, not both")
    if operation_ms is not None:
        return times.of_ms(operation_ms)
    return None if operation_time is None else times.checked(operation_time)


def is_too_old(time: int, now_ms: int, grace_ms: int) -> bool:
    """Whether tombstones that the operation must respect may be forgotten already."""
    return times.to_ms(time) < now_ms - grace_ms
