"""Streams on a real store and a real log against a simple model, with a clock that the test advances.

Clients join, leave, crash, commit late or never, and cursors are reset. Every event is delivered at least once, no
committed event is delivered again, and each partition is delivered in order.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.clock import ManualClock
from strandline.engine.sqlite_database import SqliteDatabase
from strandline.errors import Conflict, Invalid
from strandline.log.cursors import Position
from strandline.log.model import EventType
from strandline.log.subscriptions.model import Member, Share, Slot, StreamParameters, Subscription, complete
from strandline.log.subscriptions.session import StreamSession
from strandline.log.subscriptions.sql import SqlSubscriptions
from strandline.platform import Platform
from strandline.settings import Settings

PARTITIONS = 3
LEASE_MS = 6_000
WINDOW = 6
START = Position(1, -1)
PARAMETERS = StreamParameters(
    max_uncommitted_events=WINDOW, batch_limit=2, batch_flush_timeout=1, commit_timeout=20, stream_timeout=4000
)


class Client:
    """A stream and the uncommitted events of its client, by partition."""

    def __init__(self, session: StreamSession, node: str, epoch: int, expires_ms: int) -> None:
        self.session, self.node, self.epoch, self.expires_ms = session, node, epoch, expires_ms
        self.given: dict[int, list[Position]] = {}
        self.last: dict[int, Position] = {}
        self.uncommitted: dict[int, list[tuple[Position, int]]] = {}
        self.left_ms: int | None = None
        self.forfeited = False

    @property
    def latest_end_ms(self) -> int:
        """The time of its `leave`, even after an unnoticed expiry; otherwise the end of its lease."""
        return self.expires_ms if self.left_ms is None else self.left_ms


WHO = st.integers(0, 5)
seldom = st.integers(0, 5).map(lambda number: number == 0)


class Subscriptions(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.clock = ManualClock()
        self.platform = Platform(self.folder, Settings(), self.clock)
        self.log = self.platform.log
        self.log.create(
            EventType("orders", partitions=PARTITIONS, partition_strategy="hash", partition_key_fields=("n",))
        )
        entry = self.log.types.entry("orders")
        self.database = SqliteDatabase(self.folder / "catalog.db")
        self.store = SqlSubscriptions(self.database, lease_ms=LEASE_MS, now=self.clock.now_ms)
        made = complete(Subscription("app", ("orders",)), str(uuid.uuid4()), "now")
        self.slots = [Slot(entry.id, p) for p in range(PARTITIONS)]
        self.store.create(made, [Share(slot, "orders", START) for slot in self.slots])
        self.ident = str(made.id)
        self.alive: list[Client] = []
        self.ever: list[Client] = []
        self.published = 0
        self.epoch = 0
        self.committed = dict.fromkeys(range(PARTITIONS), START)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.drain()
            self.database.close()
            self.platform.close()
            shutil.rmtree(self.folder)

    # -- rules

    @rule(count=st.integers(1, 20))
    def publish(self, count: int) -> None:
        events = [{"n": self.published + n} for n in range(count)]
        self.log.publish("orders", events).raise_for_failed()
        self.published += count

    @rule()
    def join(self) -> None:
        node = str(uuid.uuid4())
        session = StreamSession(
            str(uuid.uuid4()),
            self.ident,
            self.store,
            self.log.types,
            self.clock,
            PARAMETERS,
            lambda: None,
            eager=False,
        )
        try:
            self.store.leases.join(self.ident, Member(session.id), node)
        except Conflict:
            assert len(self.store.layout(self.ident)[1]) == PARTITIONS
            return
        self.alive.append(Client(session, node, self.epoch, self.clock.now_ms() + LEASE_MS))
        self.ever.append(self.alive[-1])

    def client(self, who: int) -> Client:
        return self.alive[who % len(self.alive)]

    @precondition(lambda self: self.alive)
    @rule(who=WHO, times=st.integers(1, 4), commits=st.booleans())
    def work(self, who: int, times: int, *, commits: bool) -> None:
        for number in range(times):
            if self.alive:
                self.step(self.client(who + number), commits=commits)

    def step(self, client: Client, *, commits: bool) -> None:
        """The stream notices the changes of others; its client takes all chunks and may commit them."""
        client.session.changed()
        chunks = [chunk for chunk in client.session.step() if chunk.records is not None]
        for chunk in chunks:
            self.take(client, chunk)
        for chunk in chunks if commits else ():
            self.commit(client, chunk.partition, chunk.position)
        if client.session.finished:
            self.alive.remove(client)
            client.left_ms = self.clock.now_ms()
            # With its lease and without a reset, a stream ends only when its client did not commit in time.
            client.forfeited = client.epoch == self.epoch and client.expires_ms > self.clock.now_ms()

    def take(self, client: Client, chunk) -> None:
        offsets = [Position(chunk.position.order, n) for n in chunk.records["offset"].to_pylist()]
        assert offsets[-1] == chunk.position
        assert offsets[0] > self.committed[chunk.partition], "a committed event is delivered again"
        before = client.last.get(chunk.partition, START)
        assert all(earlier < later for earlier, later in zip([before, *offsets], offsets, strict=False))
        client.last[chunk.partition] = chunk.position
        client.given.setdefault(chunk.partition, []).append(chunk.position)
        client.uncommitted.setdefault(chunk.partition, []).append((chunk.position, len(offsets)))

    @precondition(lambda self: any(client.given for client in self.ever))
    @rule(who=WHO, partition=st.integers(0, PARTITIONS - 1), which=WHO)
    def commit_any(self, who: int, partition: int, which: int) -> None:
        """Commit any delivered batch of any client, also long after its stream has ended."""
        served = [client for client in self.ever if client.given]
        client = served[-1 - who % len(served)]
        given = client.given.get(partition) or next(iter(client.given.values()))
        partition = partition if partition in client.given else next(iter(client.given))
        self.commit(client, partition, given[-1 - which % len(given)])

    def commit(self, client: Client, partition: int, position: Position) -> None:
        now_ms = self.clock.now_ms()
        commits = [("orders", partition, position)]
        if client.epoch != self.epoch or now_ms - client.latest_end_ms > 60_000:
            with pytest.raises((Conflict, Invalid)):
                self.store.commit(self.ident, client.session.id, commits)
            return
        try:
            (verdict,) = self.store.commit(self.ident, client.session.id, commits)
        except Invalid:
            assert client.forfeited or now_ms - client.expires_ms > 60_000
            return
        assert not (client.forfeited and verdict == "committed")
        assert verdict == ("committed" if position > self.committed[partition] else "outdated")
        self.committed[partition] = max(self.committed[partition], position)

    @precondition(lambda self: len(self.alive) > 1)
    @rule(who=WHO, says_goodbye=st.booleans())
    def go(self, who: int, *, says_goodbye: bool) -> None:
        """A client leaves, or its node is killed."""
        client = self.client(who)
        self.alive.remove(client)
        if says_goodbye:
            client.session.close()
            client.left_ms = self.clock.now_ms()

    @rule(ms=st.sampled_from([100, 1_000, 2_000, 2_000, 5_000]))
    def wait(self, ms: int) -> None:
        """Time passes, and the living clients renew their leases."""
        self.clock.advance(ms)
        for client in self.alive:
            self.store.leases.renew(client.node, [client.session.id])
            if client.expires_ms > self.clock.now_ms():
                client.expires_ms = self.clock.now_ms() + LEASE_MS

    @rule(ms=st.sampled_from([LEASE_MS, 61_000]), really=seldom)
    def sleep(self, ms: int, *, really: bool) -> None:
        """All clients pause until their leases have expired."""
        self.clock.advance(ms if really else 0)

    @rule(partition=st.integers(0, PARTITIONS - 1), really=seldom)
    def reset(self, partition: int, *, really: bool) -> None:
        if not really:
            return
        self.store.reset(self.ident, [Share(self.slots[partition], "orders", START)])
        self.committed[partition] = START
        self.epoch += 1

    # -- invariants

    @invariant()
    def the_store_agrees(self) -> None:
        if not hasattr(self, "folder"):
            return
        shares, members = self.store.layout(self.ident)
        assert {share.slot.partition: share.position for share in shares} == self.committed
        assert {share.owner for share in shares} <= {None, *(member.id for member in members)}

    @invariant()
    def nobody_has_more_than_the_window(self) -> None:
        for client in getattr(self, "alive", ()):
            waiting = [
                count
                for partition, sent in client.uncommitted.items()
                for position, count in sent
                if position > self.committed[partition] and client.epoch == self.epoch
            ]
            # The stream restarts the count of a partition that it lost and got back.
            assert sum(waiting) <= WINDOW * (1 + len(client.uncommitted))

    def drain(self) -> None:
        """A last client commits everything and gets exactly the uncommitted events."""
        self.clock.advance(LEASE_MS + 1)
        for client in self.alive:
            client.session.close()
        node = "the last one"
        session = StreamSession(
            str(uuid.uuid4()),
            self.ident,
            self.store,
            self.log.types,
            self.clock,
            PARAMETERS,
            lambda: None,
            eager=True,
        )
        self.store.leases.join(self.ident, Member(session.id), node)
        found: dict[int, list[Position]] = {p: [] for p in range(PARTITIONS)}
        idle = False
        while not idle:
            session.changed()
            chunks = [chunk for chunk in session.step() if chunk.records is not None]
            idle = session.idle
            for chunk in chunks:
                offsets = chunk.records["offset"].to_pylist()
                found[chunk.partition] += [Position(chunk.position.order, n) for n in offsets]
                self.store.commit(self.ident, session.id, [("orders", chunk.partition, chunk.position)])
        ends = [info.newest_available_offset for info in self.log.partitions("orders")]
        for partition, end in enumerate(ends):
            last = Position(1, int(end[9:]))
            expected = [Position(1, n) for n in range(self.committed[partition].offset + 1, last.offset + 1)]
            assert found[partition] == expected
        session.close()


Subscriptions.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
TestSubscriptions = Subscriptions.TestCase
