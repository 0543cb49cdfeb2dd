"""The embedded subscriptions: in the catalog's own file, which all processes of a machine share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strandline import clock
from strandline.engine import sql, sqlite
from strandline.engine.sqlite import Database
from strandline.log.cursors import Position
from strandline.log.subscriptions import rows, rules
from strandline.log.subscriptions.model import Member, Share, Slot, Stored, Subscription, Verdict
from strandline.log.subscriptions.port import Commit, StreamLeases, SubscriptionStore

_SQL = sql.load("strandline.log.subscriptions", "sqlite.sql")


class _Place:
    """The file, the machine's clock, and a turn for every writer."""

    def __init__(self, path: Path, lease_ms: int, now: Callable[[], int]) -> None:
        sqlite.make_directory(path.parent)
        self.lease_ms = lease_ms
        self.now = now
        self.boot = clock.boot_id()
        self._db = Database(path, create=True)
        self._turn = sqlite.FileLock(path.with_name("subscriptions.lock"))
        with self.writing() as db:
            db.execute(_SQL["create"])
        # Lookups never wait behind a commit, and see our own commits like those of anybody else.
        self.reader = Database(path)

    @contextmanager
    def writing(self) -> Iterator[Database]:
        # Commits are many and small: writers queue here, fairly, and only then ask SQLite for its lock.
        with self._turn, self._db.transaction() as db:
            yield db

    def close(self) -> None:
        self.reader.close()
        self._db.close()
        self._turn.close()

    def members(self, db: Database, subscription_id: str) -> list[Member]:
        return rows.to_members(db.execute(_SQL["members"], (subscription_id, self.boot, self.now())))

    def bury(self, db: Database) -> None:
        """End streams whose lease ran out, wherever they were, and give away what they had."""
        for subscription_id in {row[0] for row in db.execute(_SQL["bury"], (self.boot, self.now()))}:
            self.rebalance(db, subscription_id)

    def rebalance(self, db: Database, subscription_id: str) -> None:
        shares = _shares(db, subscription_id)
        target = rules.rebalanced(shares, self.members(db, subscription_id))
        for share in shares:
            if target[share.slot] != (share.owner, share.heir):
                db.execute(_SQL["assign"], (*target[share.slot], subscription_id, *share.slot))
        db.execute(_SQL["touch"], (subscription_id,))


def _shares(db: Database, subscription_id: str) -> list[Share]:
    return [rows.to_share(*row) for row in db.execute(_SQL["shares"], (subscription_id,))]


class SqliteLeases(StreamLeases):
    def __init__(self, place: _Place) -> None:
        self._place = place
        self._seen: tuple[int, Sequence[str], Mapping[str, object]] | None = None

    def join(self, subscription_id: str, member: Member, node: str) -> None:
        place = self._place
        direct = rows.of_direct(member)
        with place.writing() as db:
            place.bury(db)
            slots = [share.slot for share in _shares(db, subscription_id)]
            rules.check_join(slots, place.members(db, subscription_id), member)
            lease = (place.boot, place.now() + place.lease_ms)
            if not db.execute(_SQL["add_stream"], (member.id, subscription_id, node, direct, *lease)):
                raise rows.missing(subscription_id)
            place.rebalance(db, subscription_id)

    def held(self, stream_id: str) -> list[Share] | None:
        place = self._place
        found = place.reader.execute(_SQL["held"], (stream_id, place.boot, place.now()))
        return [rows.to_share(*row) for row in found if row[0] is not None] if found else None

    def renew(self, node: str, stream_ids: Sequence[str]) -> None:
        place = self._place
        with place.writing() as db:
            now_ms = place.now()
            renewed = (now_ms + place.lease_ms, node, place.boot, now_ms, rows.text([*stream_ids]))
            db.execute(_SQL["renew"], renewed)
            place.bury(db)
            db.execute(_SQL["forget_streams"], (place.boot, now_ms - rules.FORGET_STREAMS_MS))

    def release(self, stream_id: str, slots: Sequence[Slot]) -> None:
        with self._place.writing() as db:
            moved = {row for slot in slots for row in db.execute(_SQL["release"], (stream_id, *slot))}
            db.execute_many(_SQL["touch"], moved)

    def leave(self, stream_id: str) -> None:
        with self._place.writing() as db:
            for (subscription_id,) in db.execute(_SQL["end_stream"], (self._place.now(), stream_id)):
                self._place.rebalance(db, subscription_id)

    def versions(self, subscription_ids: Sequence[str]) -> Mapping[str, object]:
        reader = self._place.reader
        file_version = reader.data_version()
        if self._seen is None or self._seen[:2] != (file_version, subscription_ids):
            found = dict(reader.execute(_SQL["versions"], (rows.text(subscription_ids),)))
            self._seen = file_version, subscription_ids, {key: found.get(key) for key in subscription_ids}
        return self._seen[2]


class SqliteSubscriptions(SubscriptionStore):
    def __init__(self, path: Path, *, lease_ms: int, now: Callable[[], int] = clock.boot_ms) -> None:
        sqlite.check_library()
        self._place = _Place(path, lease_ms, now)
        self.leases = SqliteLeases(self._place)

    def create(self, subscription: Subscription, shares: Sequence[Share]) -> Subscription | None:
        with self._place.writing() as db:
            row = (
                subscription.id,
                rows.key(subscription),
                subscription.owning_application,
                rows.text(subscription),
            )
            if not db.execute(_SQL["insert"], row):
                return None
            db.execute_many(_SQL["set_share"], [rows.of_share(str(subscription.id), share) for share in shares])
        return subscription

    def find(self, subscription: Subscription) -> Subscription | None:
        for (definition,) in self._place.reader.execute(_SQL["find"], (rows.key(subscription),)):
            return rows.to_subscription(definition)
        return None

    def get(self, subscription_id: str) -> Stored | None:
        for definition, epoch in self._place.reader.execute(_SQL["get"], (subscription_id,)):
            return Stored(rows.to_subscription(definition), epoch)
        return None

    def search(
        self, owner: str | None = None, event_types: Sequence[str] = (), *, limit: int = 1000, offset: int = 0
    ) -> list[Subscription]:
        found = self._place.reader.execute(_SQL["list"], (owner, rows.text(event_types), limit, offset))
        return [rows.to_subscription(definition) for (definition,) in found]

    def update(self, subscription: Subscription) -> None:
        with self._place.writing() as db:
            _expect(db.execute(_SQL["update"], (rows.text(subscription), subscription.id)), str(subscription.id))

    def delete(self, subscription_id: str) -> None:
        with self._place.writing() as db:
            _expect(db.execute(_SQL["delete"], (subscription_id,)), subscription_id)

    def layout(self, subscription_id: str) -> tuple[list[Share], list[Member]]:
        # One reader, one lock: nobody else reads in between, but a commit may fall between the two.
        with self._place.reader as db:
            members = self._place.members(db, subscription_id)
            shares = _shares(db, subscription_id)
        alive = {member.id for member in members}
        return [rules.without_dead(share, alive) for share in shares], members

    def initialise(self, subscription_id: str, shares: Sequence[Share]) -> None:
        with self._place.writing() as db:
            _expect(db.execute(_SQL["get"], (subscription_id,)), subscription_id)
            added = [db.execute(_SQL["add_share"], rows.of_share(subscription_id, share)) for share in shares]
            if any(added):
                self._place.rebalance(db, subscription_id)

    def skip(self, subscription_id: str, before: Share, after: Position, skipped: int) -> bool:
        with self._place.writing() as db:
            where = (subscription_id, *before.slot, *before.position)
            return bool(db.execute(_SQL["skip"], (*after, skipped, *where)))

    def commit(self, subscription_id: str, stream_id: str, commits: Sequence[Commit]) -> list[Verdict]:
        place = self._place
        with place.writing() as db:
            ((_, epoch),) = _expect(db.execute(_SQL["get"], (subscription_id,)), subscription_id)
            found = db.execute(_SQL["stream"], (stream_id, subscription_id, place.boot))
            stream_epoch, ended_ms = found[0] if found else (None, None)
            rules.check_commit(epoch, stream_epoch, ended_ms, place.now())
            verdicts = [_commit(db, subscription_id, commit) for commit in commits]
            if "committed" in verdicts:
                db.execute(_SQL["touch"], (subscription_id,))
        return verdicts

    def reset(self, subscription_id: str, shares: Sequence[Share]) -> None:
        with self._place.writing() as db:
            _expect(db.execute(_SQL["raise_epoch"], (subscription_id,)), subscription_id)
            db.execute(_SQL["end_streams"], (self._place.now(), subscription_id))
            for share in shares:
                of_before = (subscription_id, share.event_type, share.slot.event_type_id)
                db.execute(_SQL["drop_old_incarnations"], of_before)
            db.execute_many(_SQL["set_share"], [rows.of_share(subscription_id, share) for share in shares])
            self._place.rebalance(db, subscription_id)

    def close(self) -> None:
        self._place.close()


def _expect(found: list[tuple[Any, ...]], subscription_id: str) -> list[tuple[Any, ...]]:
    if not found:
        raise rows.missing(subscription_id)
    return found


def _commit(db: Database, subscription_id: str, commit: Commit) -> Verdict:
    event_type, partition, position = commit
    where = (subscription_id, event_type, partition)
    found = db.execute(_SQL["committed"], where)
    if not found:
        raise rows.not_read(event_type, partition)
    verdict = rules.verdict(Position(*found[0]), position)
    if verdict == "committed":
        db.execute(_SQL["commit"], (*position, *where))
    return verdict
