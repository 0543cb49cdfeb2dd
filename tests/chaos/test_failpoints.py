"""A process is killed at every step of a switch, or paused there until its session expires.

The switch is atomic; publishers continue within seconds; no lock, topic or undecided switch is left; no
acknowledged event is lost. Tested with SQLite and with ZooKeeper as coordination.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from cluster import Cluster
from ledger import Ledger
from load import Publisher, start_publishers, stop_publishers, stored, until_more

from services import DEADLINE_S, is_stopped, until
from strandline.coordination import Coordination
from strandline.errors import Unavailable
from strandline.log.switching import Step

# Steps that are reached only after another failure; the random kills of test_switching reach them.
UNUSUAL = {Step.END, Step.INSPECT, Step.ABORT, Step.UNSEAL, Step.DISCARD}
INITIATOR = [f"initiator.{step}" for step in Step if step not in UNUSUAL]
NODE = ["node.look", "node.hold", "node.confirm", "node.release"]
#: Cases that also run in the short form.
SHORT = {
    "embedded": {("initiator.close", "kill"), ("initiator.commit", "stop"), ("node.hold", "stop")},
    "one broker": {("initiator.commit", "kill"), ("initiator.snapshot", "stop"), ("node.confirm", "stop")},
}


def cases():
    for kind, short in SHORT.items():
        for name in [*INITIATOR, *NODE]:
            for how in ("kill", "stop"):
                marks = [] if (name, how) in short else [pytest.mark.slow]
                yield pytest.param(kind, name, how, id=f"{kind}-{name}-{how}", marks=marks)


def is_unlocked(seen: Coordination) -> bool:
    """Nobody knows while the observer of the test itself has no connection."""
    with suppress(Unavailable):
        return not seen.locks()
    return False


def is_alone(seen: Coordination) -> bool:
    with suppress(Unavailable):
        return len(seen.members()) == 1 and is_unlocked(seen)
    return False


@pytest.mark.parametrize(("cluster", "failpoint", "how"), [*cases()], indirect=["cluster"])
def test_a_process_fails_at_a_step(cluster: Cluster, failpoint, how):
    """The other nodes decide the switch and continue. A paused node does no damage when it is resumed."""
    healthy, broken = cluster.node(), cluster.node(failpoint=f"{failpoint}:{how}")
    cluster.create(healthy.url, partitions=2)
    ledger = Ledger()
    publishers = start_publishers(2, [healthy.url], cluster.name, ledger, seed=1)
    afflicted = Publisher(99, [broken.url], cluster.name, ledger, seed=1)
    # Its publishes are paused with it; not in a write to a file, where that would block all other writers.
    if how == "kill" or not cluster.embedded:
        afflicted.start()
    initiator = broken if failpoint.startswith("initiator") else healthy
    request = threading.Thread(target=cluster.switch, args=(initiator.url,), daemon=True)
    try:
        with cluster.coordination() as seen:
            until_more([p for p in (*publishers, afflicted) if p.ident])
            request.start()
            until(lambda: is_stopped(broken.pid) or broken.process.exit_code is not None, "the failpoint")
            until_more(publishers)
            until(lambda: is_alone(seen), "the end of the lost session")
            # An initiator that failed before it recorded the switch left nothing to decide.
            decided = {"done", "aborted", "none"} if initiator is broken else {"done", "aborted"}
            until(lambda: cluster.switch_state(healthy.url) in decided, "the decision")
            decision, timelines = cluster.switch_state(healthy.url), cluster.timelines(healthy.url)
            assert len(timelines) == (2 if decision == "done" else 1)
            if how == "stop":
                broken.resume()
                if cluster.embedded:
                    afflicted.start()
                until_more([afflicted])
            request.join(DEADLINE_S)
            if decision != "none":
                assert cluster.timelines(healthy.url) == timelines
            # The next switch works: every running node takes part.
            until(lambda: cluster.switch(healthy.url) == 201, "another switch")
            until(lambda: is_unlocked(seen), "the release of all locks")
    finally:
        broken.kill()
        stop_publishers([p for p in (*publishers, afflicted) if p.ident])
    ledger.check(stored(cluster.data, cluster.name))
    owned = {timeline["topic"] for timeline in cluster.timelines(healthy.url)}
    until(lambda: cluster.topics() == owned, "no orphan topic")
    cluster.delete(healthy.url)
    healthy.stop()


@pytest.mark.parametrize("cluster", ["embedded", "one broker"], indirect=True)
def test_a_late_initiator_does_not_abort_the_switch_of_the_next_one(cluster: Cluster):
    """An initiator that was paused between its lock and its row has lost the lock, and gives up."""
    late = cluster.node(failpoint="initiator.record:stop")
    valid = cluster.node(failpoint="initiator.close:stop", session_ms=60_000)
    cluster.create(valid.url, partitions=1)
    with ThreadPoolExecutor(2) as pool, cluster.coordination() as seen:
        first = pool.submit(cluster.switch, late.url, "other")
        until(lambda: is_stopped(late.pid), "the first initiator paused")
        until(lambda: is_alone(seen), "the end of its session")
        second = pool.submit(cluster.switch, valid.url, "other")
        until(lambda: is_stopped(valid.pid), "the second initiator before its close")
        late.resume()
        assert first.result(DEADLINE_S) == 503
        valid.resume()
        assert second.result(DEADLINE_S) == 201
    assert [timeline["order"] for timeline in cluster.timelines(late.url)] == [1, 2]
    cluster.delete(late.url)
