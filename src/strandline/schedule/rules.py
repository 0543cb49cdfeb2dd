"""States, preconditions and their order, versions and ids. Pure functions; the store's time is an argument.

The storage checks the same preconditions inside its statements. A function here names the first precondition that
a refused item broke, in this order: existence, holder or owner, lease, version, moment.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TypeAlias, get_args

import msgspec

from strandline.errors import BadTimestamp, Conflict, Invalid
from strandline.schedule.dealing import MAX_BUCKETS
from strandline.schedule.model import (
    DEAD,
    Body,
    ChosenMessage,
    Code,
    LeaseAct,
    ListQuery,
    MessageState,
    Moment,
    NewMessage,
    OwnerAct,
    Schedule,
    StoredMessage,
)

#: A new moment of a lease must be later than this from now: shorter leases cannot be used.
SHORTEST_MS = 5
MAX_ID_CHARACTERS = 255
#: The longest time that one `pull` waits for a message, and the most leases that it returns.
MAX_WAIT_MS = 60_000
MAX_PULLED = 1_000
#: The most leases that a push session holds.
MAX_CREDIT = 10_000
#: The most items of one request to a node.
MAX_ITEMS = 10_000
#: Settings are at most this large, so that sums of two fit in 64 bits and JSON numbers stay exact.
MAX_MS = 2**52
# The largest version, and the largest moment that is not malformed.
_MOST = 2**63 - 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

Item: TypeAlias = NewMessage | LeaseAct | OwnerAct | ChosenMessage


class Found(msgspec.Struct, frozen=True):
    """What the store knows about an item that it refused: the row, if any, and the schedule at that time.

    `tombstone`: the message is deleted; its consumer is the deleter, or None if its owner deleted it.
    """

    schedule: Schedule
    now_ms: int
    message: StoredMessage | None = None
    dead: bool = False
    tombstone: bool = False
    body_hash: str = ""


# -- messages


def state(at_ms: int, consumer: str | None, now_ms: int) -> MessageState:
    if at_ms <= now_ms:
        return "available"
    return "waiting" if consumer is None else "processing"


def new_id(now_ms: int) -> str:
    """A unique id; ids of later milliseconds are larger."""
    # Not from `random`: programs that seed it alike would make the same ids.
    return f"{now_ms:012x}{os.urandom(10).hex()}"


def body_hash(body: Body) -> str:
    """Equal for equal bodies."""
    return hashlib.blake2b(body.content, digest_size=16, key=b"json" if body.is_json else b"bytes").hexdigest()


# -- what is malformed


def split_view(name: str) -> tuple[str, bool]:
    """The name of a schedule, and whether its dead messages are meant."""
    return (name.removesuffix(DEAD), True) if name.endswith(DEAD) else (name, False)


def is_name(name: str) -> bool:
    """Whether a schedule can have this name."""
    return _NAME.fullmatch(name) is not None and not name.endswith(DEAD)


def check_schedule(schedule: Schedule) -> None:
    """Invalid if a name or a setting cannot be used."""
    if not is_name(schedule.name):
        raise Invalid(
            f"{schedule.name!r:.60} is not a name of a schedule: use 1 to 255 letters, digits, '.', '_' and '-', "
            f"begin with a letter or digit, and do not end with {DEAD!r}"
        )
    ranges = {
        "buckets": (schedule.buckets, 1, MAX_BUCKETS),
        "max_future_ms": (schedule.max_future_ms, 0, MAX_MS),
        "max_lease_ms": (schedule.max_lease_ms, SHORTEST_MS + 1, MAX_MS),
        "max_body_bytes": (schedule.max_body_bytes, 1, 2**30),
        "dedupe_ms": (schedule.dedupe_ms, 0, MAX_MS),
        "max_attempts": (schedule.max_attempts or 1, 1, 2**31 - 1),
    }
    for name, (value, least, most) in ranges.items():
        _check_range(f"{name} of the schedule {schedule.name}", value, least, most)
    if schedule.max_attempts == 0:
        raise Invalid(
            f"max_attempts of the schedule {schedule.name} must be at least 1; leave it out for no limit"
        )


def check_change(before: Schedule, after: Schedule) -> None:
    if before.buckets != after.buckets:
        raise Conflict(
            f"the schedule {before.name} has {before.buckets} buckets, which cannot change; "
            "delete and create it, or leave buckets as they are"
        )


def is_lease_ms(schedule: Schedule, lease_ms: int) -> bool:
    """Whether a lease can have this length."""
    return _is_integer(lease_ms) and SHORTEST_MS < lease_ms <= schedule.max_lease_ms


def check_lease_ms(schedule: Schedule, lease_ms: int) -> None:
    """BadTimestamp if a lease cannot have this length."""
    _check_integer("lease_ms", lease_ms)
    if not is_lease_ms(schedule, lease_ms):
        raise BadTimestamp(
            f"lease_ms must be more than {SHORTEST_MS} and at most {schedule.max_lease_ms}, not {lease_ms}"
        )


def check_consumer(consumer: str) -> None:
    if problem := _bad_text("consumer", consumer):
        raise Invalid(problem)


def check_query(query: ListQuery) -> None:
    """Invalid if messages cannot be listed like this."""
    _check_integer("limit", query.limit)
    if query.limit < 1:
        raise Invalid(f"the limit of a list must be at least 1, not {query.limit}")
    texts = {"producer_group": query.producer_group, "consumer": query.consumer, "after": query.after or None}
    for what, text in texts.items():
        if text is not None and (problem := _bad_text(what, text)):
            raise Invalid(problem)
    if query.producer_group is not None and query.consumer is not None:
        raise Invalid("messages are listed by producer_group or by consumer, not by both")
    if query.state not in {None, *get_args(MessageState)}:
        raise Invalid(f"{query.state!r:.60} is not a state; use {', '.join(get_args(MessageState))}")


def check_credit(credit: int) -> None:
    _check_range("credit", credit, 0, MAX_CREDIT)


def check_pull(limit: int, wait_ms: int) -> None:
    _check_range("limit", limit, 1, MAX_PULLED)
    _check_range("wait_ms", wait_ms, 0, MAX_WAIT_MS)


def _check_range(what: str, value: int, least: int, most: int) -> None:
    _check_integer(what, value)
    if not least <= value <= most:
        raise Invalid(f"{what} must be from {least} to {most}, not {value}")


def _check_integer(what: str, value: int) -> None:
    if not _is_integer(value):
        raise Invalid(f"{what} must be an integer, not {value!r:.60}")


def _is_integer(value: object) -> bool:
    """Python counts true and false as integers."""
    return isinstance(value, int) and not isinstance(value, bool)


def malformed(item: Item) -> str | None:
    """What is wrong with an item in itself; None if it can be given to a store."""
    problem = _bad_text("id", item.id)
    if isinstance(item, NewMessage):
        problem = problem or _bad_body(item.body)
    if isinstance(item, NewMessage | OwnerAct):
        problem = problem or _bad_text("producer_group", item.producer_group)
    elif isinstance(item, LeaseAct):
        problem = problem or _bad_text("consumer", item.consumer)
    if not isinstance(item, NewMessage):
        problem = problem or _bad_version(item.version)
    return problem or (None if isinstance(item, ChosenMessage) else _bad_moment(item.moment))


def _bad_body(body: Body) -> str | None:
    """Python does not check types. With a server, the statement may have the messages of other callers, too."""
    good = isinstance(body.content, bytes) and isinstance(body.is_json, bool)
    return None if good else "the body must have bytes as its content, and say whether they are JSON"


def _bad_version(version: int | None) -> str | None:
    good = version is None or (_is_integer(version) and 0 <= version <= _MOST)
    return None if good else f"the version must be an integer from 0 to 2^63 - 1, not {version!r:.60}"


def _bad_text(what: str, text: object) -> str | None:
    if not isinstance(text, str):
        return f"{what} must be a text, not {text!r:.60}"
    if not 1 <= len(text) <= MAX_ID_CHARACTERS:
        return f"{what} must have 1 to {MAX_ID_CHARACTERS} characters, not {len(text)}"
    if _UNSTORABLE.search(text):
        return f"{what} contains a character that cannot be stored"
    return None


def _bad_moment(moment: Moment) -> str | None:
    if not _is_integer(moment.ms):
        return f"the moment must be an integer, not {moment.ms!r:.60}"
    least = -_MOST if moment.relative else 0
    if not least <= moment.ms <= _MOST:
        return f"the moment must be from {least} to {_MOST} milliseconds, not {moment.ms!r:.60}"
    return None


# -- preconditions: each function returns the code of the first broken one, or None


def moment_ms(moment: Moment, now_ms: int) -> int:
    """A moment before 1970 is the start of 1970."""
    return max(0, now_ms + moment.ms) if moment.relative else moment.ms


def is_repeated_create(item: NewMessage, found: Found) -> bool:
    """Whether the message that is there was created by the same request."""
    message = found.message
    return (
        message is not None
        and message.producer_group == item.producer_group
        and found.body_hash == body_hash(item.body)
    )


def refused_create(item: NewMessage, found: Found) -> Code | None:
    message, now_ms = found.message, found.now_ms
    if message is not None and not (found.tombstone and message.at_ms <= now_ms - found.schedule.dedupe_ms):
        return "already_exists"
    if moment_ms(item.moment, now_ms) > now_ms + found.schedule.max_future_ms:
        return "too_far"
    return "body_too_large" if len(item.body.content) > found.schedule.max_body_bytes else None


def refused_lease(item: ChosenMessage, lease_ms: int, found: Found) -> Code | None:
    message = _live(found)
    if message is None:
        return "not_found"
    if message.at_ms > found.now_ms:
        return "not_available"
    if item.version not in {None, message.version}:
        return "stale_version"
    return None if SHORTEST_MS < lease_ms <= found.schedule.max_lease_ms else "bad_timestamp"


def refused_extend(item: LeaseAct, found: Found) -> Code | None:
    at_ms = moment_ms(item.moment, found.now_ms)
    within = found.now_ms + SHORTEST_MS < at_ms <= found.now_ms + found.schedule.max_lease_ms
    return refused_to_holder(item, found) or (None if within else "bad_timestamp")


def refused_release(item: LeaseAct, found: Found) -> Code | None:
    at_ms = moment_ms(item.moment, found.now_ms)
    if code := refused_to_holder(item, found):
        return code
    if at_ms <= found.now_ms + SHORTEST_MS:
        return "bad_timestamp"
    return "too_far" if at_ms > found.now_ms + found.schedule.max_future_ms else None


def refused_to_holder(item: LeaseAct, found: Found) -> Code | None:
    message = _live(found)
    if message is None:
        return "not_found"
    if message.consumer != item.consumer:
        return "not_holder"
    if message.at_ms <= found.now_ms:
        return "lease_expired"
    return None if message.version == item.version else "stale_version"


def refused_dead(item: LeaseAct, found: Found) -> Code:  # noqa: ARG001 - the signature of a rule
    """What the holder of a lease asks for in the view of dead messages: nobody holds them."""
    return "not_holder" if found.dead else "not_found"


def refused_to_owner(item: OwnerAct, found: Found, *, dead: bool = False) -> Code | None:
    message = found.message if found.dead == dead and not found.tombstone else None
    if message is None:
        return "not_found"
    if message.producer_group != item.producer_group:
        return "not_owner"
    if not dead and state(message.at_ms, message.consumer, found.now_ms) == "processing":
        return "lease_active"
    return None if item.version in {None, message.version} else "stale_version"


def refused_move(item: OwnerAct, found: Found) -> Code | None:
    if code := refused_to_owner(item, found):
        return code
    far = moment_ms(item.moment, found.now_ms) > found.now_ms + found.schedule.max_future_ms
    return "too_far" if far else None


def is_repeated_delete(item: LeaseAct | OwnerAct, found: Found) -> bool:
    """Whether the message was deleted by the same caller with the same version."""
    message = found.message
    if message is None or not found.tombstone:
        return False
    if isinstance(item, LeaseAct):
        same = message.consumer == item.consumer
    else:
        same = message.consumer is None and message.producer_group == item.producer_group
    return same and (item.version is None or item.version + 1 == message.version)


def _live(found: Found) -> StoredMessage | None:
    return None if found.dead or found.tombstone else found.message
