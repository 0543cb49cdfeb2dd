"""The subscriptions that nodes on several machines share: in the catalog's PostgreSQL database."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from strandline.engine import sql
from strandline.engine.postgres import Postgres, Session, is_plain
from strandline.errors import NotFound
from strandline.log.cursors import Position
from strandline.log.subscriptions import rows, rules
from strandline.log.subscriptions.model import Member, Share, Slot, Stored, Subscription, Verdict
from strandline.log.subscriptions.port import Commit, StreamLeases, SubscriptionStore

_SQL = sql.load("strandline.log.subscriptions", "postgres.sql")
_T = TypeVar("_T")


class _Place:
    """The database, its clock, and a turn for every writer of a subscription."""

    def __init__(self, url: str, lease_ms: int, now: Callable[[], int | None]) -> None:
        self.lease_ms = lease_ms
        self.now = now
        self.database = Postgres(url)
        self.fetch = self.database.fetch
        try:
            self.database.transaction(_make)
        except BaseException:
            self.database.close()
            raise

    def change(self, subscription_id: str, work: Callable[[Session, int], _T]) -> _T:
        """Do the work while nobody else changes the subscription, whose epoch it gets; NotFound if it is gone."""

        def locked(db: Session) -> _T:
            found = db.execute(_SQL["lock"], (subscription_id,)) if is_plain(subscription_id) else []
            if not found:
                raise rows.missing(subscription_id)
            return work(db, found[0][0])

        return self.database.transaction(locked)

    def clock(self, db: Session) -> int:
        return int(db.execute(_SQL["now"], (self.now(),))[0][0])

    def bury(self, db: Session, subscription_id: str) -> None:
        """End the streams whose lease ran out and give away what they had."""
        if db.execute(_SQL["bury"], (subscription_id, self.clock(db))):
            self.rebalance(db, subscription_id)

    def members(self, db: Session, subscription_id: str) -> list[Member]:
        return rows.to_members(db.execute(_SQL["members"], (subscription_id, self.now())))

    def rebalance(self, db: Session, subscription_id: str) -> None:
        shares = _shares(db, subscription_id)
        target = rules.rebalanced(shares, self.members(db, subscription_id))
        moved = [one for one in shares if target[one.slot] != (one.owner, one.heir)]
        db.execute_many(_SQL["assign"], [(*target[one.slot], subscription_id, *one.slot) for one in moved])
        _touch(db, subscription_id)


def _make(db: Session) -> None:
    db.execute(_SQL["turn"])
    if not db.execute(_SQL["is_made"])[0][0]:
        db.execute(_SQL["create"])


def _touch(db: Session, subscription_id: str) -> None:
    # Not the next number: after a failover that lost something it would be used twice.
    db.execute(_SQL["touch"], (secrets.randbits(63), subscription_id))


def _shares(db: Session, subscription_id: str) -> list[Share]:
    return [rows.to_share(*found) for found in db.execute(_SQL["shares"], (subscription_id,))]


class PostgresLeases(StreamLeases):
    def __init__(self, place: _Place) -> None:
        self._place = place

    def join(self, subscription_id: str, member: Member, node: str) -> None:
        place = self._place
        direct = rows.of_direct(member)

        def work(db: Session, epoch: int) -> None:
            place.bury(db, subscription_id)
            slots = [one.slot for one in _shares(db, subscription_id)]
            rules.check_join(slots, place.members(db, subscription_id), member)
            expires_ms = place.clock(db) + place.lease_ms
            db.execute(_SQL["add_stream"], (member.id, subscription_id, node, epoch, direct, expires_ms))
            place.rebalance(db, subscription_id)

        place.change(subscription_id, work)

    def held(self, stream_id: str) -> list[Share] | None:
        found = self._place.fetch(_SQL["held"], (stream_id, self._place.now()))
        return [rows.to_share(*one) for one in found if one[0] is not None] if found else None

    def renew(self, node: str, stream_ids: Sequence[str]) -> None:
        place = self._place

        def work(db: Session) -> list[str]:
            now_ms = place.clock(db)
            db.execute(_SQL["renew"], (now_ms + place.lease_ms, node, now_ms, [*stream_ids]))
            db.execute(_SQL["forget_streams"], (now_ms - rules.FORGET_STREAMS_MS,))
            return [found for (found,) in db.execute(_SQL["dead"], (now_ms,))]

        dead = place.database.transaction(work)
        # Each in its own turn: whoever holds one subscription never waits for another.
        for subscription_id in dead:
            self._in_turn(subscription_id, place.bury)
        if dead:
            place.database.transaction(work)  # some of them died so long ago that they are forgotten at once

    def release(self, stream_id: str, slots: Sequence[Slot]) -> None:
        def work(db: Session, subscription_id: str) -> None:
            if any([db.execute(_SQL["release"], (stream_id, *slot)) for slot in slots]):  # noqa: C419 - all of them
                _touch(db, subscription_id)

        self._of_stream(stream_id, work)

    def leave(self, stream_id: str) -> None:
        def work(db: Session, subscription_id: str) -> None:
            if db.execute(_SQL["end_stream"], (self._place.clock(db), stream_id)):
                self._place.rebalance(db, subscription_id)

        self._of_stream(stream_id, work)

    def _of_stream(self, stream_id: str, work: Callable[[Session, str], None]) -> None:
        """Do the work in the turn of the stream's subscription, if there is one."""
        for (subscription_id,) in self._place.fetch(_SQL["subscription_of"], (stream_id,)):
            self._in_turn(subscription_id, work)

    def _in_turn(self, subscription_id: str, work: Callable[[Session, str], None]) -> None:
        with suppress(NotFound):  # deleted meanwhile, with its streams
            self._place.change(subscription_id, lambda db, _: work(db, subscription_id))

    def versions(self, subscription_ids: Sequence[str]) -> Mapping[str, object]:
        found = dict(self._place.fetch(_SQL["versions"], ([*subscription_ids],)))
        return {one: found.get(one) for one in subscription_ids}


class PostgresSubscriptions(SubscriptionStore):
    """Leases are counted on the server's clock, or on `now` if that gives a time."""

    def __init__(self, url: str, *, lease_ms: int, now: Callable[[], int | None] = lambda: None) -> None:
        self._place = _Place(url, lease_ms, now)
        self.leases = PostgresLeases(self._place)

    def create(self, subscription: Subscription, shares: Sequence[Share]) -> Subscription | None:
        made = subscription
        owner = rows.text(made.owning_application)
        values = (made.id, rows.key(made), owner, [*made.event_types], rows.text(made))

        def work(db: Session) -> Subscription | None:
            if not db.execute(_SQL["insert"], values):
                return None
            db.execute_many(_SQL["set_share"], [rows.of_share(str(made.id), one) for one in shares])
            return made

        return self._place.database.transaction(work)

    def find(self, subscription: Subscription) -> Subscription | None:
        for (definition,) in self._place.fetch(_SQL["find"], (rows.key(subscription),)):
            return rows.to_subscription(definition)
        return None

    def get(self, subscription_id: str) -> Stored | None:
        found = self._place.fetch(_SQL["get"], (subscription_id,)) if is_plain(subscription_id) else []
        for definition, epoch in found:
            return Stored(rows.to_subscription(definition), epoch)
        return None

    def search(
        self, owner: str | None = None, event_types: Sequence[str] = (), *, limit: int = 1000, offset: int = 0
    ) -> list[Subscription]:
        if not all(map(is_plain, event_types)):
            return []
        of = None if owner is None else rows.text(owner)
        found = self._place.fetch(_SQL["list"], (of, of, [*event_types], limit, offset))
        return [rows.to_subscription(definition) for (definition,) in found]

    def update(self, subscription: Subscription) -> None:
        changed = (rows.text(subscription), subscription.id)
        self._place.change(str(subscription.id), lambda db, _: db.execute(_SQL["update"], changed))

    def delete(self, subscription_id: str) -> None:
        self._place.change(subscription_id, lambda db, _: db.execute(_SQL["delete"], (subscription_id,)))

    def layout(self, subscription_id: str) -> tuple[list[Share], list[Member]]:
        # A commit may fall between the two.
        members = rows.to_members(self._place.fetch(_SQL["members"], (subscription_id, self._place.now())))
        shares = [rows.to_share(*found) for found in self._place.fetch(_SQL["shares"], (subscription_id,))]
        alive = {member.id for member in members}
        return [rules.without_dead(share, alive) for share in shares], members

    def initialise(self, subscription_id: str, shares: Sequence[Share]) -> None:
        def work(db: Session, _: int) -> None:
            added = [db.execute(_SQL["add_share"], rows.of_share(subscription_id, share)) for share in shares]
            if any(added):
                self._place.rebalance(db, subscription_id)

        self._place.change(subscription_id, work)

    def skip(self, subscription_id: str, before: Share, after: Position, skipped: int) -> bool:
        values = (*after, skipped, subscription_id, *before.slot, *before.position)
        return self._place.database.transaction(lambda db: bool(db.execute(_SQL["skip"], values)))

    def commit(self, subscription_id: str, stream_id: str, commits: Sequence[Commit]) -> list[Verdict]:
        place = self._place

        def work(db: Session, epoch: int) -> list[Verdict]:
            found = db.execute(_SQL["stream"], (stream_id, subscription_id)) if is_plain(stream_id) else []
            stream_epoch, ended_ms = found[0] if found else (None, None)
            rules.check_commit(epoch, stream_epoch, ended_ms, place.clock(db))
            verdicts = [_commit(db, subscription_id, commit) for commit in commits]
            if "committed" in verdicts:
                _touch(db, subscription_id)
            return verdicts

        return place.change(subscription_id, work)

    def reset(self, subscription_id: str, shares: Sequence[Share]) -> None:
        def work(db: Session, _: int) -> None:
            db.execute(_SQL["raise_epoch"], (subscription_id,))
            db.execute(_SQL["end_streams"], (self._place.clock(db), subscription_id))
            of_before = {(subscription_id, share.event_type, share.slot.event_type_id) for share in shares}
            db.execute_many(_SQL["drop_old_incarnations"], sorted(of_before))
            db.execute_many(_SQL["set_share"], [rows.of_share(subscription_id, share) for share in shares])
            self._place.rebalance(db, subscription_id)

        self._place.change(subscription_id, work)

    def close(self) -> None:
        self._place.database.close()


def _commit(db: Session, subscription_id: str, commit: Commit) -> Verdict:
    event_type, partition, position = commit
    where = (subscription_id, event_type, partition)
    found = db.execute(_SQL["committed"], where) if is_plain(event_type) else []
    if not found:
        raise rows.not_read(event_type, partition)
    verdict = rules.verdict(Position(*found[0]), position)
    if verdict == "committed":
        db.execute(_SQL["commit"], (*position, *where))
    return verdict
