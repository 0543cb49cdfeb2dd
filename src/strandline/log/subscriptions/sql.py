"""Subscriptions in a SQL database, beside the catalog: a file of one machine, or a server for several."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from strandline.engine.database import Database, LeaseClock, Tables, Transaction, is_plain
from strandline.errors import Invalid, NotFound
from strandline.log.cursors import Position
from strandline.log.subscriptions import rows, rules
from strandline.log.subscriptions.model import Member, Share, Slot, Stored, Subscription, Verdict
from strandline.log.subscriptions.port import Commit, StreamLeases, SubscriptionStore

_T = TypeVar("_T")


class SubscriptionTables(Tables):
    """The tables, the clock that leases expire on, and transactions that lock a subscription."""

    def __init__(self, database: Database, lease_ms: int, now: Callable[[], int] | None) -> None:
        super().__init__(database, "subscriptions", "strandline.log.subscriptions", "subscriptions.sql")
        self.lease_ms = lease_ms
        self.clock = LeaseClock(database, now)

    def change(self, subscription_id: str, work: Callable[[Transaction, int], _T]) -> _T:
        """Run `work` with the epoch while the subscription is locked. NotFound if it does not exist."""

        def locked(tx: Transaction) -> _T:
            found = tx.run("lock", subscription_id=subscription_id) if is_plain(subscription_id) else []
            if not found:
                raise rows.missing(subscription_id)
            return work(tx, found[0][0])

        return self.transaction(locked)

    def expire(self, tx: Transaction, subscription_id: str) -> None:
        """End the streams whose lease has expired and give their slots to others."""
        if self._end_expired(tx, subscription_id):
            self._assign(tx, subscription_id)

    def _end_expired(self, tx: Transaction, subscription_id: str) -> bool:
        now_ms = self.clock.now_ms(tx)
        ended = tx.run("expire", subscription_id=subscription_id, boot=self.clock.boot, now_ms=now_ms)
        self.keep(tx, subscription_id, {stream_id for (stream_id,) in ended})
        return bool(ended)

    def keep(self, tx: Transaction, subscription_id: str, stream_ids: Collection[str]) -> None:
        """Note the slots of streams that have ended, before others get them."""
        shares = _shares(tx, subscription_id) if stream_ids else []
        for stream_id in stream_ids:
            slots = [share.slot for share in shares if share.owner == stream_id]
            tx.run("keep", kept=rows.text(slots), stream_id=stream_id)

    def members(self, tx: Transaction, subscription_id: str) -> list[Member]:
        return rows.to_members(tx.run("members", subscription_id=subscription_id, **self.clock.parameters()))

    def rebalance(self, tx: Transaction, subscription_id: str) -> None:
        """Give the slots to the streams that are alive, after the slots of expired ones are noted."""
        self._end_expired(tx, subscription_id)
        self._assign(tx, subscription_id)

    def _assign(self, tx: Transaction, subscription_id: str) -> None:
        shares = _shares(tx, subscription_id)
        target = rules.rebalanced(shares, self.members(tx, subscription_id))
        moved = [one.slot for one in shares if target[one.slot] != (one.owner, one.heir)]
        tx.run_many("assign", [rows.of_assignment(subscription_id, slot, *target[slot]) for slot in moved])
        _touch(tx, subscription_id)


def _touch(tx: Transaction, subscription_id: str) -> None:
    # Not the next number: after a failover that lost commits, a number would be used again.
    tx.run("touch", version=secrets.randbits(63), subscription_id=subscription_id)


def _shares(tx: Transaction, subscription_id: str) -> list[Share]:
    return rows.to_shares(tx.run("shares", subscription_id=subscription_id))


class SqlStreamLeases(StreamLeases):
    def __init__(self, tables: SubscriptionTables) -> None:
        self._tables = tables
        self._seen: tuple[int, Sequence[str], Mapping[str, object]] | None = None

    def join(self, subscription_id: str, member: Member, node: str) -> None:
        tables = self._tables

        def work(tx: Transaction, epoch: int) -> None:
            tables.expire(tx, subscription_id)
            slots = [one.slot for one in _shares(tx, subscription_id)]
            rules.check_join(slots, tables.members(tx, subscription_id), member)
            tx.run(
                "add_stream",
                id=member.id,
                subscription_id=subscription_id,
                node=node,
                epoch=epoch,
                direct=None if member.direct is None else rows.text(sorted(member.direct)),
                boot=tables.clock.boot,
                expires_ms=tables.clock.now_ms(tx) + tables.lease_ms,
            )
            tables.rebalance(tx, subscription_id)

        tables.change(subscription_id, work)

    def held(self, stream_id: str) -> list[Share] | None:
        found = self._tables.fetch("held", stream_id=stream_id, **self._tables.clock.parameters())
        return rows.to_shares(row for row in found if row[0] is not None) if found else None

    def renew(self, node: str, stream_ids: Sequence[str]) -> None:
        tables, boot = self._tables, self._tables.clock.boot

        def work(tx: Transaction) -> list[str]:
            now_ms = tables.clock.now_ms(tx)
            later_ms = now_ms + tables.lease_ms
            tx.run("renew", expires_ms=later_ms, node=node, boot=boot, now_ms=now_ms, stream_ids=[*stream_ids])
            tx.run("forget_streams", boot=boot, before_ms=now_ms - rules.FORGET_STREAMS_MS)
            return [found for (found,) in tx.run("expired", boot=boot, now_ms=now_ms)]

        expired = tables.transaction(work)
        # One transaction each: a writer that has locked one subscription never waits for another.
        for subscription_id in expired:
            self._locked(subscription_id, tables.expire)
        if expired:
            tables.transaction(work)  # deletes those that expired long ago

    def release(self, stream_id: str, slots: Sequence[Slot]) -> None:
        def work(tx: Transaction, subscription_id: str) -> None:
            moved = [tx.run("release", stream_id=stream_id, **rows.of_slot(slot)) for slot in slots]
            if any(moved):
                _touch(tx, subscription_id)

        self._of_stream(stream_id, work)

    def leave(self, stream_id: str, *, forfeit: bool = False) -> None:
        def work(tx: Transaction, subscription_id: str) -> None:
            if tx.run("end_stream", now_ms=self._tables.clock.now_ms(tx), stream_id=stream_id):
                if not forfeit:
                    self._tables.keep(tx, subscription_id, [stream_id])
                self._tables.rebalance(tx, subscription_id)

        self._of_stream(stream_id, work)

    def _of_stream(self, stream_id: str, work: Callable[[Transaction, str], None]) -> None:
        """Run `work` with the stream's subscription locked, if it exists."""
        for (subscription_id,) in self._tables.fetch("subscription_of", stream_id=stream_id):
            self._locked(subscription_id, work)

    def _locked(self, subscription_id: str, work: Callable[[Transaction, str], None]) -> None:
        with suppress(NotFound):  # deleted in the meantime, with its streams
            self._tables.change(subscription_id, lambda tx, _: work(tx, subscription_id))

    def versions(self, subscription_ids: Sequence[str]) -> Mapping[str, object]:
        commits, seen = self._tables.database.data_version(), self._seen
        if seen is not None and seen[:2] == (commits, subscription_ids):
            return seen[2]
        found: dict[str, int] = dict(self._tables.fetch("versions", subscription_ids=[*subscription_ids]))
        versions = {one: found.get(one) for one in subscription_ids}
        if commits is not None:
            self._seen = commits, subscription_ids, versions
        return versions


class SqlSubscriptions(SubscriptionStore):
    """Leases expire on the database's clock, or on `now` if it is given."""

    def __init__(self, database: Database, *, lease_ms: int, now: Callable[[], int] | None = None) -> None:
        self._tables = SubscriptionTables(database, lease_ms, now)
        self.leases = SqlStreamLeases(self._tables)

    def create(self, subscription: Subscription, shares: Sequence[Share]) -> Subscription | None:
        subscription_id = str(subscription.id)
        values = {
            "id": subscription_id,
            "key": rows.key(subscription),
            "owner": rows.text(subscription.owning_application),
            "event_types": [*subscription.event_types],
            "definition": rows.text(subscription),
        }

        def work(tx: Transaction) -> Subscription | None:
            if not tx.run("insert", **values):
                return None
            tx.run_many("set_share", [rows.of_share(subscription_id, one) for one in shares])
            return subscription

        return self._tables.transaction(work)

    def find(self, subscription: Subscription) -> Subscription | None:
        for (definition,) in self._tables.fetch("find", key=rows.key(subscription)):
            return rows.to_subscription(definition)
        return None

    def get(self, subscription_id: str) -> Stored | None:
        if is_plain(subscription_id):
            for definition, epoch in self._tables.fetch("get", subscription_id=subscription_id):
                return Stored(rows.to_subscription(definition), epoch)
        return None

    def search(
        self, owner: str | None = None, event_types: Sequence[str] = (), *, limit: int = 1000, offset: int = 0
    ) -> list[Subscription]:
        if not all(map(is_plain, event_types)):
            return []
        found = self._tables.fetch(
            "list",
            owner=None if owner is None else rows.text(owner),
            event_types=[*event_types],
            limit=limit,
            offset=offset,
        )
        return [rows.to_subscription(definition) for (definition,) in found]

    def update(self, subscription: Subscription) -> None:
        where, definition = str(subscription.id), rows.text(subscription)
        self._tables.change(where, lambda tx, _: tx.run("update", definition=definition, subscription_id=where))

    def delete(self, subscription_id: str) -> None:
        self._tables.change(subscription_id, lambda tx, _: tx.run("delete", subscription_id=subscription_id))

    def layout(self, subscription_id: str) -> tuple[list[Share], list[Member]]:
        # A commit may happen between the two reads.
        alive = self._tables.clock.parameters()
        members = rows.to_members(self._tables.fetch("members", subscription_id=subscription_id, **alive))
        shares = rows.to_shares(self._tables.fetch("shares", subscription_id=subscription_id))
        ids = {member.id for member in members}
        return [rules.without_dead(share, ids) for share in shares], members

    def initialise(self, subscription_id: str, shares: Sequence[Share]) -> None:
        def work(tx: Transaction, _: int) -> None:
            added = [tx.run("add_share", **rows.of_share(subscription_id, share)) for share in shares]
            if any(added):
                self._tables.rebalance(tx, subscription_id)

        self._tables.change(subscription_id, work)

    def skip(self, subscription_id: str, before: Share, after: Position, skipped: int) -> bool:
        to_timeline, to_position = after
        values = {**rows.of_share(subscription_id, before), "skipped": skipped}
        values |= {"to_timeline": to_timeline, "to_position": to_position}
        return self._tables.transaction(lambda tx: bool(tx.run("skip", **values)))

    def commit(self, subscription_id: str, stream_id: str, commits: Sequence[Commit]) -> list[Verdict]:
        clock = self._tables.clock

        def work(tx: Transaction, epoch: int) -> list[Verdict]:
            where = {"stream_id": stream_id, "subscription_id": subscription_id, "boot": clock.boot}
            found = tx.run("stream", **where) if is_plain(stream_id) else []
            stream_epoch, ended_ms, kept = found[0] if found else (None, None, None)
            rules.check_commit(epoch, stream_epoch, ended_ms, clock.now_ms(tx))
            slots = rows.to_slots(kept)
            verdicts = [_commit(tx, subscription_id, stream_id, slots, commit) for commit in commits]
            if "committed" in verdicts:
                _touch(tx, subscription_id)
            return verdicts

        return self._tables.change(subscription_id, work)

    def reset(self, subscription_id: str, shares: Sequence[Share]) -> None:
        values = [rows.of_share(subscription_id, share) for share in shares]

        def work(tx: Transaction, _: int) -> None:
            tx.run("raise_epoch", subscription_id=subscription_id)
            tx.run("end_streams", now_ms=self._tables.clock.now_ms(tx), subscription_id=subscription_id)
            tx.run_many("drop_old_incarnations", values)
            tx.run_many("set_share", values)
            self._tables.rebalance(tx, subscription_id)

        self._tables.change(subscription_id, work)


def _commit(
    tx: Transaction, subscription_id: str, stream_id: str, kept: Collection[Slot], commit: Commit
) -> Verdict:
    event_type, partition, position = commit
    where = {"subscription_id": subscription_id, "event_type": event_type, "partition": partition}
    found = rows.to_shares(tx.run("committed", **where)) if is_plain(event_type) else []
    if not found:
        raise Invalid(f"the subscription has no cursor for partition {partition} of {event_type!r}")
    verdict = rules.verdict(found[0].position, position)
    if verdict == "committed":  # an outdated commit may be a repetition whose answer was lost
        rules.check_owner(found[0], stream_id, kept)
        timeline, offset = position
        tx.run("commit", timeline=timeline, position=offset, **where)
    return verdict
