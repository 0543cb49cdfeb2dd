"""Every step of a switch, once with its process killed there and once asleep past its session.

Either the switch happened completely or not at all; publishers go on within seconds; no lock, topic or
undecided switch stays; nothing acknowledged is lost. Through SQLite and through ZooKeeper.
"""

import threading

import pytest
from cluster import Cluster
from ledger import Ledger
from load import Publisher, start_publishers, stop_publishers, stored, until_more

from services import DEADLINE_S, is_stopped, until
from strandline.log.switching import Step

# These are reached only when something went wrong before; the random kills of test_switching get there.
UNUSUAL = {Step.END, Step.INSPECT, Step.ABORT, Step.UNSEAL, Step.DISCARD}
INITIATOR = [f"initiator.{step}" for step in Step if step not in UNUSUAL]
NODE = ["node.look", "node.hold", "node.confirm", "node.release"]
#: Those that also run in the short form.
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


@pytest.mark.parametrize(("cluster", "failpoint", "how"), [*cases()], indirect=["cluster"])
def test_a_process_fails_at_a_step(cluster: Cluster, failpoint, how):
    """The other nodes notice, decide and go on; a node that wakes up late does no harm."""
    healthy, broken = cluster.node(), cluster.node(failpoint=f"{failpoint}:{how}")
    cluster.create(healthy.url, partitions=2)
    ledger = Ledger()
    publishers = start_publishers(2, [healthy.url], cluster.name, ledger, seed=1)
    afflicted = Publisher(99, [broken.url], cluster.name, ledger, seed=1)
    # What it has under way falls asleep with it; not while it writes to a file, where it would hold up all others.
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
            until(lambda: len(seen.members()) == 1 and not seen.locks(), "nothing left of the lost session")
            # An initiator that got nowhere has left nothing to decide.
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
            # The next switch works: every live node takes part.
            until(lambda: cluster.switch(healthy.url) == 201, "another switch")
            until(lambda: not seen.locks(), "no lock left behind")
    finally:
        broken.kill()
        stop_publishers([p for p in (*publishers, afflicted) if p.ident])
    ledger.check(stored(cluster.data, cluster.name))
    owned = {timeline["topic"] for timeline in cluster.timelines(healthy.url)}
    until(lambda: cluster.topics() == owned, "no orphan topic")
    cluster.delete(healthy.url)
    healthy.stop()
