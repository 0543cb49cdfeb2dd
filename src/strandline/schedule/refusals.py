"""Refused items as errors."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from strandline.errors import (
    BadTimestamp,
    Conflict,
    Forbidden,
    Invalid,
    LeaseLost,
    NotFound,
    StrandlineError,
    TooLarge,
)
from strandline.schedule.model import Code, ItemAnswer

_KINDS: dict[Code, type[StrandlineError]] = {
    "not_found": NotFound,
    "already_exists": Conflict,
    "body_too_large": TooLarge,
    "not_holder": LeaseLost,
    "lease_expired": LeaseLost,
    "stale_version": LeaseLost,
    "fenced": LeaseLost,
    "not_owner": Forbidden,
    "forbidden": Forbidden,
    "lease_active": Conflict,
    "not_available": Conflict,
    "bad_timestamp": BadTimestamp,
    "too_far": BadTimestamp,
}


def is_done(answer: ItemAnswer) -> bool:
    """Whether the item has its effect. A create that is repeated after a lost answer has it."""
    return answer.status == "ok" or (answer.code == "already_exists" and answer.version is not None)


def raise_for_failed(answers: Sequence[ItemAnswer]) -> None:
    """Raise the error of the first item without effect. Its `info` has the `items` of all of them."""
    failed = [answer for answer in answers if not is_done(answer)]
    if failed:
        raise error_of(failed[0], failed)


def error_of(answer: ItemAnswer, failed: Sequence[ItemAnswer] = ()) -> StrandlineError:
    kind = _KINDS.get(answer.code or "invalid", Invalid)
    others = f" ({len(failed) - 1} more items failed)" if len(failed) > 1 else ""
    detail = f"message {answer.id!r}: {answer.detail or answer.code}{others}"
    return kind(detail, item_code=answer.code, items=msgspec.to_builtins(failed or [answer]))
