"""Kafka: a broker that is its own controller, in one process."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka.admin import AdminClient

from services.java import JavaService
from services.process import free_port

# A request for an unknown topic creates it, as in many clusters: tests notice topics that are created by accident.
# Retention never runs by itself, because tests write records with old timestamps.
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config={login} required user_{user}="{password}";
log.dirs={data}
auto.create.topics.enable=true
group.initial.rebalance.delay.ms=0
log.initial.task.delay.ms=86400000
log.retention.check.interval.ms=86400000
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Broker(JavaService):
    """A cluster of one broker. Clients of its second listener, `guarded_servers`, need a user and a password."""

    user, password = "shop", "hush-kafka-4711"

    name = "kafka"
    product = "kafka"
    main = "kafka.Kafka"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        ports = {"port": self.port, "sasl_port": free_port(), "controller_port": free_port()}
        self.guarded_servers = f"127.0.0.1:{ports['sasl_port']}"
        self._settings = self.folder / "server.properties"
        login = {"login": _LOGIN, "user": self.user, "password": self.password}
        self._settings.write_text(_PROPERTIES.format(**ports, **login, data=self.folder / "data"))
        self._tool("format", "--standalone", "-t", self._tool("random-uuid"), "-c", str(self._settings))

    def _tool(self, *arguments: str) -> str:
        command = self.java("kafka.tools.StorageTool", *arguments)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def arguments(self) -> Sequence[str]:
        return [str(self._settings)]

    def answers(self) -> bool:
        quiet = {"bootstrap.servers": self.bootstrap_servers, "log_level": 0}
        try:
            return bool(AdminClient(quiet).list_topics(timeout=1).brokers)
        except Exception:  # noqa: BLE001 - the driver raises many kinds of errors while the broker starts
            return False
