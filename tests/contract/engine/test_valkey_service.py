"""The Valkey servers of the tests start, fail over and end."""

from __future__ import annotations

import psutil

from services import until
from services.valkey import ValkeyCluster, ValkeyServer


def test_a_server_keeps_its_port_across_a_kill(tmp_path):
    with ValkeyServer(tmp_path) as server:
        server.execute("SET", "key", "value")
        server.kill()
        assert not server.answers()
        server.bring_back()
        assert server.execute("GET", "key") is None
        pid = server.pid
    assert not psutil.pid_exists(pid)


def test_a_replica_takes_over_from_a_killed_master(tmp_path):
    """The Cluster has three masters and three replicas; its processes end with it."""
    with ValkeyCluster(tmp_path) as cluster:
        assert [node.is_master for node in cluster.nodes] == [True] * 3 + [False] * 3
        master = cluster.master_of(b"key")
        assert master.execute("SET", "key", "value") == b"OK"
        replica = cluster.nodes[cluster.nodes.index(master) + 3]
        # Each command has its own connection, and WAIT is about the writes of its connection.
        until(lambda: replica.execute("DBSIZE") == 1, "the copy on the replica")
        master.kill()
        until(lambda: cluster.master_of(b"key") is not master, "the failover")
        assert cluster.master_of(b"key").execute("GET", "key") == b"value"
        cluster.bring_back()
        assert not master.is_master
        pids = [node.pid for node in cluster.nodes]
    assert not any(map(psutil.pid_exists, pids))
