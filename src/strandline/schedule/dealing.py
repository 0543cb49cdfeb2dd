"""Buckets and consumers: which bucket a message is in, whose it is, and who gets which due message. Pure."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Sequence

from strandline.schedule.model import DueMessage, Taker

MAX_BUCKETS = 65_536
#: How long a due message is reserved for the consumer that its bucket is dealt to.
GRACE_MS = 5


#: Messages in the buckets of other nodes count as this much younger, so that nodes with a backlog do not compete
#: for the same messages, and no message waits for long behind younger ones.
_OTHERS_LATER_MS = 1_000


def hash_of(message_id: str) -> int:
    """The number that decides the bucket of a message (modulo the buckets) and its lane (modulo the lanes)."""
    return zlib.crc32(message_id.encode())


def deal(buckets: int, consumers: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The first and last bucket of each consumer: sorted by id, ceil(B/C) contiguous buckets each.

    With more consumers than buckets, the last consumers get none: their `last` is less than their `first`.
    """
    share = -(-buckets // max(1, len(consumers)))
    dealt = {}
    for number, consumer in enumerate(sorted(consumers)):
        first = min(number * share, buckets)
        dealt[consumer] = (first, min(first + share, buckets) - 1)
    return dealt


def assign(
    due: Sequence[DueMessage], takers: Sequence[Taker], now_ms: int, max_bytes: int
) -> list[tuple[DueMessage, Taker]]:
    """Pairs of messages and takers, oldest message first, within every taker's credit and `max_bytes` in total.

    A message goes to the taker of its bucket. What has been due for 5 ms goes to any taker with credit, to the one
    with most credit left. Messages in buckets of no taker count as younger: another node delivers them, too. One
    message is assigned even if it is larger than `max_bytes`. Exhausted messages use up nothing: nobody gets them.
    """
    hand = _Hand(takers)
    anybody = next((taker for taker in takers if taker.credit > 0), None)
    assigned: list[tuple[DueMessage, Taker]] = []
    if anybody is not None:
        assigned += [(message, anybody) for message in due if message.exhausted]
    free_of_charge = len(assigned)
    size = 0
    for message in sorted((one for one in due if not one.exhausted), key=hand.order):
        place = hand.place(message, now_ms)
        if place is None:
            continue
        size += message.body_bytes
        if len(assigned) > free_of_charge and size > max_bytes:
            break
        hand.credit[place] -= 1
        assigned.append((message, takers[place]))
    return assigned


class _Hand:
    """The takers, their remaining credit, and whose a bucket is."""

    def __init__(self, takers: Sequence[Taker]) -> None:
        self.credit = [taker.credit for taker in takers]
        ranges = sorted((taker.first, taker.last, place) for place, taker in enumerate(takers))
        self._ranges = [one for one in ranges if one[0] <= one[1]]

    def _owner(self, bucket: int) -> int | None:
        found = bisect_right(self._ranges, (bucket, MAX_BUCKETS, 0)) - 1
        if found < 0 or bucket > self._ranges[found][1]:
            return None
        return self._ranges[found][2]

    def order(self, message: DueMessage) -> tuple[int, str]:
        own = self._owner(message.bucket) is not None
        return message.at_ms + (0 if own else _OTHERS_LATER_MS), message.id

    def place(self, message: DueMessage, now_ms: int) -> int | None:
        owner = self._owner(message.bucket)
        if owner is not None and self.credit[owner] > 0:
            return owner
        if message.at_ms > now_ms - GRACE_MS or not self.credit:
            return None
        most = max(self.credit)
        return self.credit.index(most) if most > 0 else None
