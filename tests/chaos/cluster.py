"""Real nodes on each of the allowed sets of services, and what can be seen of them from outside."""

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from confluent_kafka.admin import AdminClient

from services import Server, start_server, until
from strandline.coordination import Coordination
from strandline.coordination.connect import connect
from strandline.settings import Settings

SESSION_MS = 1500


@dataclass(frozen=True)
class Cluster:
    """Nodes that share `data`. Once it is created, one event type can move between `default` and `other`."""

    data: Path
    storages: tuple[dict, ...]
    name: str = field(default_factory=lambda: f"chaos_{uuid.uuid4().hex[:12]}")
    _nodes: list[Server] = field(default_factory=list)

    @property
    def embedded(self) -> bool:
        """Whether the catalog and the coordination are files."""
        return not (self.data / "strandline.toml").exists()

    def node(self, *, port: int | None = None, failpoint: str = "", session_ms: int = SESSION_MS) -> Server:
        env = {"STRANDLINE_TEST_FAILPOINT": failpoint} if failpoint else {}
        quick = {"coordination_session_timeout_ms": session_ms, "log_purge_interval_ms": 1000}
        node = start_server(self.data, port=port, env=env, **quick)
        self._nodes.append(node)
        return node

    def close(self) -> None:
        """End all nodes, the sleeping ones as well."""
        for node in self._nodes:
            node.kill()

    def create(self, url: str, partitions: int) -> None:
        for storage in self.storages:
            httpx.post(f"{url}/storages", json=storage).raise_for_status()
        # Creating a topic can take a while on a broker that has just started.
        body = {"name": self.name, "partitions": partitions}
        httpx.post(f"{url}/event-types", json=body, timeout=30).raise_for_status()

    def timelines(self, url: str) -> list[dict]:
        return httpx.get(f"{url}/event-types/{self.name}/timelines", timeout=30).json()

    def switch(self, url: str, storage: str | None = None) -> int:
        """To that storage, or to whichever it is not on: the status, 0 without an answer."""
        try:
            if storage is None:
                storage = "default" if self.timelines(url)[-1]["storage_id"] == "other" else "other"
            path = f"{url}/event-types/{self.name}/timelines"
            return httpx.post(path, json={"storage_id": storage}, timeout=60).status_code
        except httpx.TransportError:
            return 0

    def switch_state(self, url: str) -> str:
        answer = httpx.get(f"{url}/event-types/{self.name}/timelines/switch", timeout=30)
        return answer.json()["state"] if answer.status_code == 200 else "none"

    def delete(self, url: str) -> None:
        """And with it all of its topics."""
        httpx.delete(f"{url}/event-types/{self.name}", timeout=30).raise_for_status()
        until(lambda: not self.topics(), 60, "no topic left behind")

    def topics(self) -> set[str]:
        """Those of the event type that are there, wherever."""
        found = {path.stem for folder in ("topics", "other") for path in (self.data / folder).glob("*.db")}
        for storage in self.storages:
            if storage["storage_type"] == "kafka":
                quiet = {"bootstrap.servers": storage["kafka_configuration"]["bootstrap_servers"], "log_level": 0}
                found.update(AdminClient(quiet).list_topics(timeout=10).topics)
        return {topic for topic in found if topic.startswith(f"{self.name}.")}

    @contextmanager
    def coordination(self) -> Iterator[Coordination]:
        """As somebody sees it who is no member."""
        file = None if self.embedded else self.data / "strandline.toml"
        opened = connect(Settings.load(file).coordination, self.data)
        try:
            yield opened
        finally:
            opened.close()


def sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] == "T"


@contextmanager
def asleep(node: Server) -> Iterator[None]:
    os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.pid, signal.SIGCONT)


def sqlite_storage(storage_id: str) -> dict:
    return {"id": storage_id, "storage_type": "sqlite", "sqlite_configuration": {"directory": storage_id}}


def kafka_storage(storage_id: str, broker) -> dict:
    configuration = {"bootstrap_servers": broker.bootstrap_servers}
    return {"id": storage_id, "storage_type": "kafka", "kafka_configuration": configuration}
