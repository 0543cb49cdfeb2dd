"""A real Kafka broker for tests and benchmarks: one process, on loopback."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from jars import classpath
from services import free_port, until

# A quarter of a broker is enough for tests, and several may run side by side on a small machine.
_JAVA = ("java", "-Xmx512m", "-XX:+UseSerialGC")

# Topics are created by accident when anybody names them: as in many clusters, and so that tests notice.
# Retention never strikes by itself, because tests write records with timestamps of long ago.
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
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


class Broker:
    """A cluster of one. It keeps its port and its data over `kill` and `start`; its output is in `log_file`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder = folder.resolve()  # the broker runs in there
        self.log_file = folder / "broker.log"
        self.port = free_port()
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = folder / "server.properties"
        self._settings.write_text(
            _PROPERTIES.format(port=self.port, controller_port=free_port(), data=folder / "data")
        )
        self._tool("format", "--standalone", "-t", self._tool("random-uuid"), "-c", str(self._settings))

    def _tool(self, *arguments: str) -> str:
        command = [*_JAVA, "-cp", classpath("kafka"), "kafka.tools.StorageTool", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def start(self) -> None:
        """Return once it answers."""
        with self.log_file.open("ab") as output:
            self._process = subprocess.Popen(
                [*_JAVA, "-cp", classpath("kafka"), "kafka.Kafka", str(self._settings)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until(self._answers, 60, "the broker's answer")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the broker ended:\n{self.log_file.read_text()[-3000:]}"
        quiet = {"bootstrap.servers": self.bootstrap_servers, "log_level": 0}
        try:
            return bool(AdminClient(quiet).list_topics(timeout=1).brokers)
        except Exception:  # noqa: BLE001 - whatever it is, it is not up yet
            return False

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None and self._process.poll() is None:
            self._signal(signal.SIGKILL)
            self._process.wait(20)

    def bring_back(self) -> None:
        """Whatever was done to it, it runs and answers again."""
        if self._process is not None and self._process.poll() is None:
            self.resume()
            until(self._answers, 60, "the broker's answer")
        else:
            self.start()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)


@contextmanager
def running_broker(folder: Path) -> Iterator[Broker]:
    """A broker in an empty folder, which it leaves behind with its log."""
    broker = Broker(folder)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
