"""Nodes on each supported set of services, and their state as seen from outside."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from confluent_kafka.admin import AdminClient

from services import CLIENT, Server, Service, until
from strandline.coordination import Coordination
from strandline.coordination.connect import connect
from strandline.settings import Settings

SESSION_MS = 1500


@dataclass(frozen=True)
class Cluster:
    """Nodes that share `data`, and one event type that is switched between `default` and `other`."""

    data: Path
    storages: tuple[dict, ...]
    name: str = field(default_factory=lambda: f"chaos_{uuid.uuid4().hex[:12]}")
    _nodes: list[Server] = field(default_factory=list)

    @property
    def embedded(self) -> bool:
        """Whether the catalog and the coordination are files."""
        return not (self.data / "strandline.toml").exists()

    def node(
        self,
        *,
        port: int | None = None,
        failpoint: str = "",
        session_ms: int = SESSION_MS,
        ahead_ms: int = 0,
    ) -> Server:
        """`ahead_ms`: how far its clock is ahead."""
        env = {"STRANDLINE_TEST_FAILPOINT": failpoint} if failpoint else {}
        if ahead_ms:
            env["STRANDLINE_TEST_CLOCK"] = f"{ahead_ms:+},1"
        quick = {"coordination_session_timeout_ms": session_ms, "log_purge_interval_ms": 1000}
        node = Server(self.data, port=port, env=env, **quick).start()
        self._nodes.append(node)
        return node

    def close(self) -> None:
        """Kill all nodes, also paused ones."""
        for node in self._nodes:
            node.kill()

    def create(self, url: str, partitions: int) -> None:
        for storage in self.storages:
            CLIENT.post(f"{url}/storages", json=storage).raise_for_status()
        # Creating a topic can be slow on a broker that has just started.
        body = {"name": self.name, "partitions": partitions}
        CLIENT.post(f"{url}/event-types", json=body).raise_for_status()

    def timelines(self, url: str) -> list[dict]:
        return CLIENT.get(f"{url}/event-types/{self.name}/timelines").json()

    def switch(self, url: str, storage: str | None = None) -> int:
        """Switch to the storage, by default to the other one. Returns the status, or 0 without a response."""
        try:
            if storage is None:
                storage = "default" if self.timelines(url)[-1]["storage_id"] == "other" else "other"
            path = f"{url}/event-types/{self.name}/timelines"
            return CLIENT.post(path, json={"storage_id": storage}).status_code
        except httpx.TransportError:
            return 0

    def switch_state(self, url: str) -> str:
        answer = CLIENT.get(f"{url}/event-types/{self.name}/timelines/switch")
        return answer.json()["state"] if answer.status_code == 200 else "none"

    def delete(self, url: str) -> None:
        """Delete the event type and wait until all of its topics are deleted."""
        CLIENT.delete(f"{url}/event-types/{self.name}").raise_for_status()
        until(lambda: not self.topics(), "the deletion of all topics")

    def topics(self) -> set[str]:
        """The existing topics of the event type, in all storages."""
        found = {path.stem for folder in ("topics", "other") for path in (self.data / folder).glob("*.db")}
        for storage in self.storages:
            if storage["storage_type"] == "kafka":
                quiet = {"bootstrap.servers": storage["kafka_configuration"]["bootstrap_servers"], "log_level": 0}
                found.update(AdminClient(quiet).list_topics(timeout=10).topics)
        return {topic for topic in found if topic.startswith(f"{self.name}.")}

    @contextmanager
    def coordination(self) -> Iterator[Coordination]:
        """The coordination, opened without joining as a member."""
        file = None if self.embedded else self.data / "strandline.toml"
        opened = connect(Settings.load(file).coordination, self.data)
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def asleep(node: Server) -> Iterator[None]:
    node.pause()
    try:
        yield
    finally:
        node.resume()


@contextmanager
def away(service: Service, how: str):
    """The service is killed or paused, and answers again afterwards."""
    service.kill() if how == "kill" else service.pause()
    try:
        yield
    finally:
        service.bring_back()


def sqlite_storage(storage_id: str) -> dict:
    return {"id": storage_id, "storage_type": "sqlite", "sqlite_configuration": {"directory": storage_id}}


def kafka_storage(storage_id: str, broker) -> dict:
    configuration = {"bootstrap_servers": broker.bootstrap_servers}
    return {"id": storage_id, "storage_type": "kafka", "kafka_configuration": configuration}
