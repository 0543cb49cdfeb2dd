"""ZooKeeper only: lost answers, restarts of the server, sessions that another client ends."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from coordination_place import TIMEOUT_MS, Calls, Place, is_unlocked, succeeds
from kazoo.client import KazooClient

from lossy_proxy import LossyProxy
from services import free_port, until
from services.zookeeper import ZookeeperServer
from strandline.coordination.zookeeper import ZookeeperCoordination
from strandline.engine import zookeeper as engine
from strandline.errors import LeaseLost, OutcomeUnknown, StrandlineError, Unavailable


@pytest.fixture
def root() -> str:
    return f"/test/{uuid.uuid4().hex}"


@pytest.fixture
def coordination(zookeeper: ZookeeperServer, root: str) -> Iterator[ZookeeperCoordination]:
    made = ZookeeperCoordination(zookeeper.hosts, root, TIMEOUT_MS)
    yield made
    made.close()


@pytest.fixture
def raw(zookeeper: ZookeeperServer) -> Iterator[KazooClient]:
    """A plain client of the same server."""
    client = KazooClient(zookeeper.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


def end_session(server: ZookeeperServer, coordination: ZookeeperCoordination) -> None:
    """End the session by another client with the same id and password."""
    thief = KazooClient(server.hosts, client_id=coordination._zk._client.client_id)
    thief.start()
    thief.stop()
    thief.close()


def test_the_tree_is_the_seeds(coordination: ZookeeperCoordination, raw: KazooClient, root: str):
    """The tree has lock, version, locked event types and nodes; the last two are ephemeral."""
    assert raw.get(f"{root}/version")[0] == b"0"
    coordination.bump()
    coordination.join("node1", "1")
    coordination.lock("et_1", "x")
    assert set(raw.get_children(root)) == {"lock", "version", "locked_et", "nodes", "sessions"}
    assert raw.get(f"{root}/version")[0] == b"1"
    for path, value in ((f"{root}/nodes/node1", b"1"), (f"{root}/locked_et/et_1", b"x")):
        found, stat = raw.get(path)
        assert found == value
        assert stat.ephemeralOwner != 0


def test_many_start_at_once(zookeeper: ZookeeperServer, root: str):
    """The tree is created once, under its lock; the version is not reset."""
    place = Place(f"zookeeper://{zookeeper.hosts}{root}")
    try:
        others = [place.other() for _ in range(3)]
        assert sorted(other.call("bump") for other in others) == [1, 2, 3]
        assert place.open().version() == 3
    finally:
        place.close()


def test_a_session_that_others_ended_comes_back(zookeeper: ZookeeperServer, coordination: ZookeeperCoordination):
    """A session that was ended is not sure; after a join it is a new session without the old locks."""
    coordination.join("here", "1")
    coordination.lock("orders", "mine")
    calls = Calls(coordination)
    with calls.expected():
        end_session(zookeeper, coordination)
        until(lambda: not coordination.sure())
    with pytest.raises(LeaseLost):
        coordination.relock("orders", "x")
    with pytest.raises(LeaseLost):
        coordination.update("x")
    coordination.unlock("orders")
    assert not coordination.sure()
    until(lambda: succeeds(lambda: coordination.join("here", "2")))
    until(coordination.sure)
    assert (coordination.members(), coordination.locks()) == ({"here": "2"}, {})


def test_a_restarted_server_keeps_the_session(tmp_path: Path):
    """After a crash and restart the session is sure again, with its member, locks and watches."""
    with ZookeeperServer(tmp_path) as server:
        place = Place(f"zookeeper://{server.hosts}/test")
        try:
            coordination, other = place.open(timeout_ms=60_000), place.other(timeout_ms=60_000)
            coordination.join("here", "1")
            coordination.lock("orders", "mine")
            assert coordination.bump() == 1
            calls = Calls(coordination)
            sure: list[bool] = []
            coordination.watch(lambda: sure.append(coordination.sure()))
            with calls.expected():
                coordination.bump()
            until(lambda: sure)
            told = len(sure)
            server.kill()
            # A suspended connection is not sure. A late call for the bump may come first.
            until(lambda: False in sure[told:])
            with pytest.raises(StrandlineError):
                coordination.version()
            with calls.expected():
                server.start()
            until(coordination.sure)
            assert (coordination.members(), coordination.locks()) == ({"here": "1"}, {"orders": "mine"})
            coordination.relock("orders", "still mine")
            until(lambda: succeeds(lambda: other.call("bump")))
            until(lambda: coordination.version() >= 3)
            with calls.expected():
                other.call("lock", "payments", "theirs")
            with calls.expected():
                other.call("relock", "payments", "x")
        finally:
            place.close()


@pytest.fixture
def wire(zookeeper: ZookeeperServer) -> Iterator[LossyProxy]:
    proxy = LossyProxy(zookeeper.port)
    yield proxy
    proxy.close()


@pytest.fixture
def lossy(wire: LossyProxy, root: str) -> Iterator[ZookeeperCoordination]:
    """A session over a connection that can lose messages; the session does not expire during a test."""
    made = ZookeeperCoordination(f"127.0.0.1:{wire.port}", root, 60_000)
    yield made
    made.close()


@pytest.mark.parametrize("lose", ["lose_answer_to", "lose_request"])
def test_a_lock_whose_answer_got_lost_is_not_held(
    wire: LossyProxy, lossy: ZookeeperCoordination, coordination: ZookeeperCoordination, lose: str
):
    """If the outcome is unknown, the caller does not hold the lock; soon no session holds it."""
    lossy.join("here", "1")
    getattr(wire, lose)(b"orders")
    with pytest.raises(OutcomeUnknown):
        lossy.lock("orders", "1")
    until(lossy.sure)
    until(lambda: is_unlocked(coordination))
    assert coordination.lock("orders", "2")
    with pytest.raises(LeaseLost):
        lossy.relock("orders", "3")
    lossy.update("2")
    assert coordination.members() == {"here": "2"}


def test_a_lock_can_be_asked_for_again_at_once(wire: LossyProxy, lossy: ZookeeperCoordination):
    """After a lost answer the leftover of the first call does not block the next call."""
    wire.lose_answer_to(b"orders")
    with pytest.raises(OutcomeUnknown):
        lossy.lock("orders", "1")
    until(lambda: lossy._zk.connected)
    assert lossy.lock("orders", "2")
    until(lossy.sure)
    assert lossy.locks() == {"orders": "2"}
    lossy.relock("orders", "3")


@pytest.mark.parametrize("lose", ["lose_answer_to", "lose_request"])
def test_an_unlock_whose_answer_got_lost_is_made_up_for(
    wire: LossyProxy, lossy: ZookeeperCoordination, coordination: ZookeeperCoordination, lose: str
):
    """The caller no longer holds the lock, and soon its node is deleted."""
    lossy.lock("orders", "1")
    getattr(wire, lose)(b"orders")
    lossy.unlock("orders")
    assert wire.lost.wait(60)
    until(lambda: is_unlocked(coordination))
    until(lossy.sure)


def test_an_unlock_that_ends_with_an_unexpected_error_is_repeated(
    coordination: ZookeeperCoordination, monkeypatch: pytest.MonkeyPatch
):
    """The lock does not stay until the process ends."""

    def breaking(*_: object) -> None:
        raise RuntimeError("unexpected")

    coordination.lock("orders", "1")
    with monkeypatch.context() as patch:
        patch.setattr(coordination._zk, "write", breaking)
        with pytest.raises(RuntimeError):
            coordination.unlock("orders")
    until(lambda: is_unlocked(coordination))
    assert coordination.lock("orders", "2")


@pytest.mark.parametrize("lose", ["lose_answer_to", "lose_request"])
def test_a_relock_waits_for_its_answer(wire: LossyProxy, lossy: ZookeeperCoordination, lose: str):
    """`relock` is idempotent, so it retries after a lost answer."""
    lossy.lock("orders", "1")
    getattr(wire, lose)(b"orders")
    lossy.relock("orders", "2")
    assert wire.lost.is_set()
    assert lossy.locks() == {"orders": "2"}


@pytest.mark.parametrize("lose", ["lose_answer_to", "lose_request"])
def test_a_join_whose_answer_got_lost_can_be_repeated(
    wire: LossyProxy, lossy: ZookeeperCoordination, coordination: ZookeeperCoordination, lose: str
):
    """A join of unknown outcome leaves no member and can be repeated."""
    getattr(wire, lose)(b"a value")
    with pytest.raises(OutcomeUnknown):
        lossy.join("here", "a value")
    until(lossy.sure)
    until(lambda: coordination.members() == {})
    lossy.join("here", "2")
    assert coordination.members() == {"here": "2"}


def test_a_bump_whose_answer_got_lost_has_happened_once(
    wire: LossyProxy, lossy: ZookeeperCoordination, coordination: ZookeeperCoordination
):
    """The outcome is unknown to the caller; a repeated bump increments the version again."""
    coordination.bump()
    wire.lose_answer_to(b"\0\x012")  # the new version, with its length
    with pytest.raises(OutcomeUnknown):
        lossy.bump()
    until(lossy.sure)
    assert coordination.version() == 2
    assert lossy.bump() == 3


def test_the_servers_limit_counts(zookeeper: ZookeeperServer, root: str):
    """If the server grants a shorter timeout than requested, `sure` uses the granted one."""
    coordination = ZookeeperCoordination(zookeeper.hosts, root, 2 * zookeeper.max_session_ms)
    beat = coordination._session.beat
    assert beat is not None
    assert beat.lease_ms == zookeeper.max_session_ms
    coordination.close()


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    """A missing server is Unavailable, and the error names its address."""
    monkeypatch.setattr(engine, "_START_SECONDS", 0.3)
    port = free_port()
    with pytest.raises(Unavailable, match=str(port)):
        ZookeeperCoordination(f"127.0.0.1:{port}", "/test", TIMEOUT_MS)


def test_a_tree_that_was_removed(coordination: ZookeeperCoordination, raw: KazooClient, root: str):
    """A deleted tree is Unavailable, not a wrong answer."""
    for name in ("version", "locked_et", "nodes"):
        raw.delete(f"{root}/{name}", recursive=True)
    for call in (
        coordination.version,
        coordination.bump,
        coordination.locks,
        coordination.members,
        lambda: coordination.lock("orders", "1"),
        lambda: coordination.join("here", "1"),
    ):
        with pytest.raises(Unavailable):
            call()


def test_a_closed_session_refuses(coordination: ZookeeperCoordination):
    """Every call on a closed session is Unavailable."""
    coordination.close()
    for call in (coordination.version, coordination.bump, lambda: coordination.lock("orders", "1")):
        with pytest.raises(Unavailable):
            call()


def test_the_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch):
    """The error has the install command."""
    monkeypatch.delitem(sys.modules, engine.__name__)
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    with pytest.raises(Unavailable, match=r"pip install 'strandline\[zookeeper\]'"):
        __import__(engine.__name__)
