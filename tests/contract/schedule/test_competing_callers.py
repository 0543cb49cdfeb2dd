"""Many callers at once, and processes that are killed: never two active leases, never a lost message."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from schedule_place import MEGABYTE, NOON, act, created, everything, made, message, open_database, own

from peers import Peer
from strandline.clock import SystemClock
from strandline.errors import Unavailable
from strandline.schedule.model import ChosenMessage, ItemAnswer, ListQuery
from strandline.schedule.storage import writes
from strandline.schedule.storage.sql import SqlSchedules

WORKER = Path(__file__).with_name("schedule_worker.py")
THREADS = 8


def together(work, count=THREADS):
    """Run `work(number)` in threads that start at the same time; returns the results."""
    start = threading.Barrier(count)

    def one(number):
        start.wait(30)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_competing_leases_never_give_a_message_twice(place, store):
    """Two nodes with four leasers each, which all may take everything."""
    names = [f"m{n:04}" for n in range(400)]
    created(store, *names)
    nodes = [store, place.open()]

    def lease(number):
        taken = []
        while got := nodes[number % 2].due.lease("s", [everything(f"c{number}", 7)], MEGABYTE).leases:
            taken += got
        return taken

    found = Counter(one.message.id for taken in together(lease) for one in taken)
    missed = {one.id for one in store.messages.list("s", ListQuery(state="available", limit=1000))}
    assert set(found.values()) == {1}
    assert found.keys() | missed == {*names}
    assert {one.delivery_count for one in store.messages.list("s", ListQuery(state="processing", limit=1000))} == {
        1
    }


def test_of_competing_callers_one_wins(place, store):
    """Chosen leases, extensions with the same version, creates and deletes: exactly one of each succeeds."""
    nodes = [store, place.open()]
    for turn in range(5):
        name = f"m{turn}"
        made_it = together(
            lambda n, name=name: nodes[n % 2].messages.create("s", [message(name, body=b"%d" % n)])[0]
        )
        assert Counter(answer.code for answer in made_it) == {None: 1, "already_exists": THREADS - 1}
        chosen = together(
            lambda n, name=name: nodes[n % 2].messages.lease("s", f"c{n}", 9000, [ChosenMessage(name)])[0]
        )
        (lease,) = [one for one in chosen if not isinstance(one, ItemAnswer)]
        extended = together(
            lambda n, lease=lease: nodes[n % 2].messages.extend("s", [act(lease, in_ms=9000 + n)])[0]
        )
        assert Counter(answer.code for answer in extended) == {None: 1, "stale_version": THREADS - 1}
        new = act(lease, version=max(answer.version or 0 for answer in extended))
        deleted = together(lambda n, new=new: nodes[n % 2].messages.delete("s", [new])[0])
        assert Counter(answer.code for answer in deleted) == {None: 1, "already_deleted": THREADS - 1}


def test_everything_at_once_keeps_the_counts_right(place, store):
    """Batches in any order of ids do not get stuck, and the slots agree with the messages afterwards."""
    nodes = [store, place.open()]
    names = [f"m{n}" for n in range(40)]

    def live(number):
        chance, node = random.Random(number), nodes[number % 2]
        for _ in range(15):
            some = chance.sample(names, 10)
            node.messages.create("s", [message(one, NOON + chance.randrange(200_000)) for one in some])
            node.messages.move(
                "s", [own(one, NOON - chance.randrange(200_000)) for one in chance.sample(names, 5)]
            )
            leases = node.due.lease("s", [everything(f"c{number}", 5)], MEGABYTE).leases
            node.messages.release("s", [act(one, in_ms=1000) for one in leases[:2]])
            node.messages.delete("s", [act(one) for one in leases[2:4]])
            node.messages.delete("s", [own(one) for one in chance.sample(names, 2)])
            if number < 2:
                node.fold()
                node.purge(10)

    made(store, dedupe_ms=0)
    together(live)
    left = store.messages.list("s", ListQuery(limit=1000))
    counts = store.messages.counts("s", NOON - 3_600_000, NOON + 3_600_000)
    assert (counts.total, counts.waiting) == (len(left), sum(m.consumer is None and m.at_ms > NOON for m in left))
    store.fold()
    assert store.messages.counts("s", NOON - 3_600_000, NOON + 3_600_000) == counts


@pytest.fixture
def address(place):
    """A store on the real clock, for processes."""
    database = open_database(place.address)
    store = SqlSchedules(database, None if database.shared else SystemClock().now_ms)
    made(store)
    store.close()
    database.close()
    return place.address


@pytest.fixture
def real(address):
    database = open_database(address)
    store = SqlSchedules(database, None if database.shared else SystemClock().now_ms)
    yield store
    store.close()
    database.close()


def until_killed(peer, name, *arguments):
    """What a process reports until it is killed."""
    peer.send(name, *arguments)
    reports = []
    with suppress(EOFError):
        while True:
            reports.append(peer.receive())
    assert peer.ended() == 9
    return reports


# In SQLite a batch passes the point twice: after the messages, and after their bodies and counts.
POINTS = ["schedule.changed:kill:5", "schedule.changed:kill:6", "test.created:kill:3"]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_in_the_middle_of_a_batch_stores_all_of_it_or_nothing(address, real, point):
    """What was acknowledged is there, with bodies and counts. An unfinished batch leaves nothing behind."""
    peer = Peer(WORKER, address, STRANDLINE_TEST_FAILPOINT=point)
    acknowledged = until_killed(peer, "create", "m", 10)
    stored = {one.id for one in real.messages.list("s", ListQuery(limit=1000))}
    whole = {batch for batch in range(10) if f"m-{batch}-0" in stored}
    assert stored == {f"m-{batch}-{n}" for batch in whole for n in range(20)}
    assert {*acknowledged} <= whole
    assert len(whole - {*acknowledged}) <= 1
    assert real.messages.counts("s", 0, NOON * 2).total == len(stored)
    leases = real.due.lease("s", [everything(credit=1000)], MEGABYTE).leases
    assert {one.message.id for one in leases} == stored
    peer.kill()


def test_a_killed_consumer_loses_nothing(address, real):
    """Its leases stay until they expire; acknowledged deletes are done."""
    created(real, *(f"m{n:03}" for n in range(100)))
    peer = Peer(WORKER, address, STRANDLINE_TEST_FAILPOINT="test.leased:kill:3")
    deleted = [name for names in until_killed(peer, "work", "ada", 10) for name in names]
    held = real.messages.list("s", ListQuery(consumer="ada", limit=1000))
    left = real.messages.list("s", ListQuery(limit=1000))
    assert (len(deleted), len(held), len(left)) == (40, 20, 60)
    epoch = real.sessions.open("s", "ada", "node")
    back = real.due.hand_back("s", "ada", epoch, 100).leases
    assert [one.message.id for one in back] == [one.id for one in held]
    peer.kill()


def test_concurrent_single_operations_share_a_commit(tmp_path):
    """On SQLite a commit costs a sync of the disk. Callers that wait for the same writer are stored by one."""
    database = open_database(f"sqlite:{tmp_path / 'schedule.db'}")
    store = SqlSchedules(database, lambda: NOON)
    made(store)
    commits = []
    original = database.transaction

    def counted(work):
        commits.append(1)
        return original(work)

    database.transaction = counted
    with database._turn:  # all callers queue while another process writes
        pool = ThreadPoolExecutor(THREADS)
        asked = [pool.submit(store.messages.create, "s", [message(f"m{n}")]) for n in range(THREADS)]
        done = threading.Event()
        while len(store._writes._line._queue) < THREADS - 1:
            done.wait(0.001)
    answers = [one.result(30)[0] for one in asked]
    assert [answer.status for answer in answers] == ["ok"] * THREADS
    assert len(commits) == 2
    pool.shutdown()
    store.close()
    database.close()


def test_concurrent_single_operations_share_a_statement(postgres):
    """On PostgreSQL a statement costs more than its rows. An error is the answer to its own operations only."""
    address = postgres.url(postgres.new_database())
    database = open_database(address)
    store = SqlSchedules(database, lambda: NOON)
    made(store)
    other = next(name for name in map(str, range(100)) if hash(name) % 4 == hash("s") % 4)
    made(store, other)
    stored = []
    blocked, free = threading.Event(), threading.Event()
    original = database.change

    def counted(statement, values):
        stored.append(values["ids"])
        if len(stored) == 1:
            blocked.set()
            free.wait(30)
        if values["schedule"] == other:
            raise Unavailable("the server is away")
        return original(statement, values)

    database.change = counted
    with ThreadPoolExecutor(2 * THREADS) as pool:
        first = pool.submit(store.messages.create, "s", [message("first")])
        blocked.wait(30)
        new = [pool.submit(store.messages.create, "s", [message(f"m{n}")]) for n in range(THREADS - 1)]
        lost = [pool.submit(store.messages.create, other, [message(f"m{n}")]) for n in range(THREADS)]
        done = threading.Event()
        line = next(iter(store._writes._lines.values()))
        while len(line._queue) < len(new) + len(lost):
            done.wait(0.001)
        free.set()
        assert {one.result(30)[0].status for one in [first, *new]} == {"ok"}
        assert {type(one.exception(30)) for one in lost} == {Unavailable}
    assert sorted(map(len, stored)) == [1, THREADS - 1, THREADS]
    store.close()
    database.close()


def test_large_bodies_do_not_share_a_statement(postgres, monkeypatch):
    """Its size is limited: one that is too large would fail for all callers."""
    monkeypatch.setattr(writes, "_GROUP_BYTES", 10_000)
    address = postgres.url(postgres.new_database())
    database = open_database(address)
    store = SqlSchedules(database, lambda: NOON)
    made(store)
    stored = []
    blocked, free = threading.Event(), threading.Event()
    original = database.change

    def counted(statement, values):
        stored.append(sum(map(len, values["bodies"])))
        blocked.set()
        free.wait(30)
        return original(statement, values)

    database.change = counted
    with ThreadPoolExecutor(THREADS) as pool:
        asked = [
            pool.submit(store.messages.create, "s", [message(f"m{n}", body=b"x" * 4_000)]) for n in range(THREADS)
        ]
        blocked.wait(30)
        done = threading.Event()
        while sum(len(line._queue) for line in store._writes._lines.values()) < THREADS - 1:
            done.wait(0.001)
        free.set()
        assert {one.result(30)[0].status for one in asked} == {"ok"}
    assert max(stored) == 12_000
    assert sum(stored) == THREADS * 4_000
    store.close()
    database.close()


def test_a_batch_of_more_than_16_items_does_not_wait_for_others(postgres):
    """On PostgreSQL it is a statement of its own. A smaller one is stored after the one that is under way."""
    address = postgres.url(postgres.new_database())
    database = open_database(address)
    store = SqlSchedules(database, lambda: NOON)
    made(store)
    blocked, free = threading.Event(), threading.Event()
    original = database.change

    def held(statement, values):
        if values["ids"] == ["first"]:
            blocked.set()
            free.wait(30)
        return original(statement, values)

    database.change = held
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(store.messages.create, "s", [message("first")])
        blocked.wait(30)
        small = pool.submit(store.messages.create, "s", [message(f"small{n}") for n in range(16)])
        large = store.messages.create("s", [message(f"large{n}") for n in range(17)])
        assert {answer.status for answer in large} == {"ok"}
        assert not small.done()
        free.set()
        assert {answer.status for one in (first, small) for answer in one.result(30)} == {"ok"}
    store.close()
    database.close()
