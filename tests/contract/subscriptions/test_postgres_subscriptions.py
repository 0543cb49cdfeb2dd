"""The contract of the PostgreSQL store alone: leases on the server's clock, concurrent machines."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from subscriptions_place import cursors, held, join, made, share

from lossy_proxy import LossyProxy
from services import until
from services.postgres import PostgresServer
from strandline.engine.postgres import PostgresDatabase
from strandline.errors import Conflict, Invalid, OutcomeUnknown
from strandline.log.cursors import Position
from strandline.log.subscriptions.sql import SqlSubscriptions


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def stores(postgres: PostgresServer, database: str) -> Iterator[list[SqlSubscriptions]]:
    """Two stores that act as two nodes."""
    opened = [PostgresDatabase(postgres.url(database)) for _ in range(2)]
    yield [SqlSubscriptions(one, lease_ms=400) for one in opened]
    for one in opened:
        one.close()


@pytest.fixture
def patient(postgres: PostgresServer, database: str) -> Iterator[SqlSubscriptions]:
    """A node whose leases do not expire during a test, even on a busy machine."""
    opened = PostgresDatabase(postgres.url(database))
    yield SqlSubscriptions(opened, lease_ms=600_000)
    opened.close()


def test_a_lease_runs_out_on_the_servers_clock(stores, patient):
    """A node that does not renew loses its slots; the clocks of the nodes do not matter."""
    one, other = stores[0], patient
    ident = made(one)
    died, lives = join(one, ident, "node-1"), join(other, ident, "node-2")

    def taken_over() -> bool:
        other.leases.renew("node-2", [lives])
        return held(other, lives) == [0, 1]

    until(taken_over)
    assert one.leases.held(died) is None
    assert [member.id for member in one.layout(ident)[1]] == [lives]


def test_a_commit_whose_answer_got_lost_is_unknown_and_can_be_looked_up(postgres, database, stores):
    """The cursor shows whether the commit happened; the same commit again is outdated."""
    proxy = LossyProxy(postgres.port)
    lossy = PostgresDatabase(postgres.url(database, port=proxy.port))
    behind = SqlSubscriptions(lossy, lease_ms=60_000)
    ident = made(behind)
    stream = join(behind, ident)
    proxy.lose_answer_to(b"COMMIT\0")
    commits = [("orders", 0, Position(1, 5))]
    with pytest.raises(OutcomeUnknown):
        behind.commit(ident, stream, commits)
    assert cursors(stores[0], ident) == [(1, 5), (1, -1)]
    assert behind.commit(ident, stream, commits) == ["outdated"]
    lossy.close()
    proxy.close()


def test_nodes_that_do_everything_at_once_do_not_get_stuck(stores, patient):
    """Concurrent joins, commits, releases, resets and renewals do not deadlock; then every slot has one owner."""
    subscriptions = [made(stores[0], 4) for _ in range(2)]

    def live(seed: int) -> None:
        chance = random.Random(seed)
        store, node = stores[seed % 2], f"node-{seed}"
        for step in range(15):
            ident = chance.choice(subscriptions)
            try:
                stream = join(store, ident, node)
                store.leases.renew(node, [stream])
                store.commit(ident, stream, [("orders", chance.randrange(4), Position(1, step))])
                store.leases.release(stream, [found.slot for found in store.leases.held(stream) or []])
                if chance.random() < 0.2:
                    store.reset(ident, [share(partition) for partition in range(4)])
                store.leases.leave(stream)
            except (Conflict, Invalid):  # no free slot, reset by another node, or ended too long ago
                continue

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(live, range(8)))

    def only_the_living() -> bool:
        stores[0].leases.renew("node-x", [])
        return all(not stores[1].layout(ident)[1] for ident in subscriptions)

    until(only_the_living)
    for ident in subscriptions:
        stream = join(patient, ident, "last")
        assert held(stores[0], stream) == [0, 1, 2, 3]
