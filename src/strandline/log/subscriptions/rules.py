"""The rules of subscriptions: assigning slots to streams, moving slots, and commits. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from strandline.errors import Conflict, Invalid
from strandline.log.cursors import Position
from strandline.log.subscriptions.model import Member, PartitionState, Share, Slot, Subscription, Verdict

#: How long after its end a stream can still commit.
COMMITS_AFTER_END_MS = 60_000
#: How long after its end a stream is deleted; later than its last possible commit.
FORGET_STREAMS_MS = 2 * COMMITS_AFTER_END_MS


def key(subscription: Subscription) -> tuple[str, tuple[str, ...], str]:
    """What identifies a subscription; the order of the event types does not matter."""
    types = tuple(sorted({*subscription.event_types}))
    return subscription.owning_application, types, subscription.consumer_group or "default"


def changed(before: Subscription, after: Subscription) -> None:
    """Invalid if the key or `read_from` of a subscription is changed."""
    if key(before) != key(after):
        raise Invalid("owning_application, event_types and consumer_group of a subscription cannot change")
    if after.read_from is not None and after.read_from != before.read_from:
        raise Invalid(f"read_from of a subscription cannot change (from {before.read_from!r})")


def without_dead(share: Share, alive: Collection[str]) -> Share:
    """The share without an owner or heir that is not alive."""
    owner = share.owner if share.owner in alive else None
    heir = share.heir if share.heir in alive else None
    return Share(
        share.slot, share.event_type, share.position, share.skipped, owner or heir, heir if owner else None
    )


def check_join(slots: Collection[Slot], members: Sequence[Member], new: Member) -> None:
    """Conflict if there is no slot for a new stream; Nakadi answers 409 as well."""
    taken = {slot for member in members for slot in member.direct or ()}
    if new.direct is not None:
        if wanted := sorted(new.direct & taken):
            raise Conflict(f"another stream has asked for partition {wanted[0].partition} directly; try others")
        return
    free = len({*slots} - taken)
    sharing = sum(member.direct is None for member in members)
    if sharing >= free:
        raise Conflict(
            f"there are no free slots: {sharing} streams share the {free} partitions; wait until one ends"
        )


def wanted(shares: Sequence[Share], members: Sequence[Member]) -> dict[Slot, str | None]:
    """The stream for each slot: the one that asked for it, else an even spread with as few moves as possible."""
    result: dict[Slot, str | None] = {share.slot: None for share in shares}
    for member in members:
        result.update(dict.fromkeys((member.direct or frozenset()) & result.keys(), member.id))
    free = [share for share in shares if result[share.slot] is None]
    sharing = [member.id for member in members if member.direct is None]
    result.update(_spread(free, sharing))
    return result


def _spread(shares: Sequence[Share], streams: Sequence[str]) -> dict[Slot, str]:
    if not streams:
        return {}
    held: dict[str, list[Slot]] = {stream: [] for stream in streams}
    for share in shares:
        # A slot counts for its heir, because another heir would be a second move.
        intended = share.heir if share.heir in held else share.owner
        if intended in held:
            held[intended].append(share.slot)
    kept = {slot: stream for stream, quota in _quotas(held, len(shares)).items() for slot in held[stream][:quota]}
    loose = iter([share.slot for share in shares if share.slot not in kept])
    for stream, quota in _quotas(held, len(shares)).items():
        for _ in range(quota - min(len(held[stream]), quota)):
            kept[next(loose)] = stream
    return kept


def _quotas(held: Mapping[str, Collection[Slot]], count: int) -> dict[str, int]:
    """Equal parts; the larger ones go to the streams that hold most."""
    part, larger = divmod(count, len(held))
    by_size = sorted(held, key=lambda stream: -len(held[stream]))
    return {stream: part + (number < larger) for number, stream in enumerate(by_size)}


def rebalanced(shares: Sequence[Share], members: Sequence[Member]) -> dict[Slot, tuple[str | None, str | None]]:
    """Owner and heir of every slot after streams began or ended.

    A slot that moves from a live stream stays with it until the stream releases it. All other slots move at once.
    """
    alive = {member.id for member in members}
    result: dict[Slot, tuple[str | None, str | None]] = {}
    target = wanted(shares, members)
    for share in shares:
        to = target[share.slot]
        if share.owner in alive and share.owner != to:
            result[share.slot] = (share.owner, to)
        else:
            result[share.slot] = (to, None)
    return result


def state(share: Share) -> PartitionState:
    if share.owner is None:
        return "unassigned"
    return "assigned" if share.heir is None else "reassigning"


def verdict(committed: Position, given: Position) -> Verdict:
    """A cursor moves forward only. Positions are ordered across timelines, so they can be compared directly."""
    return "committed" if given > committed else "outdated"


def check_commit(epoch: int, stream_epoch: int | None, ended_ms: int | None, now_ms: int) -> None:
    """Raise an error unless the stream is of this epoch, and open or ended recently."""
    if stream_epoch is None:
        raise Invalid("there is no such stream, or it ended long ago; commit with the id of the stream you read")
    if stream_epoch != epoch:
        raise Conflict("the cursors were reset after this stream began; open a new stream and commit with its id")
    if ended_ms is not None and now_ms - ended_ms > COMMITS_AFTER_END_MS:
        raise Invalid("the stream ended more than 60 s ago; its uncommitted events are sent to another stream")


def check_owner(share: Share, stream_id: str, kept: Collection[Slot]) -> None:
    """Invalid unless the stream has the slot, or had it when it ended."""
    if share.owner != stream_id and share.slot not in kept:
        raise Invalid(
            f"partition {share.slot.partition} of {share.event_type!r} does not belong to this stream, or not any "
            "more because the stream did not commit in time; its events are sent to another stream"
        )


def overdue(waiting_since_ms: int | None, commit_timeout_ms: int, now_ms: int) -> bool:
    """Whether the client's commit timeout has expired."""
    return waiting_since_ms is not None and now_ms - waiting_since_ms >= commit_timeout_ms
