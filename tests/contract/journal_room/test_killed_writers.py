"""Nodes that compete for one journal, of which one after the other is killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from journal_node import replicate

import strandline
from services import until
from strandline.log import StorageInfo
from strandline.log.storage.registry import KafkaConfiguration

WORKER = Path(__file__).with_name("writing_worker.py")


class Writer:
    """A process that writes, and what it said was acknowledged."""

    def __init__(self, data: Path, name: str) -> None:
        command = [sys.executable, str(WORKER), str(data), "orders", "a", name]
        self.name = name
        self.acknowledged: list[int] = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            if line.endswith("\n"):  # the last line may be cut
                self.acknowledged.append(int(line))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()


@pytest.mark.parametrize("engine", ["sqlite", "kafka"])
def test_what_a_killed_node_acknowledged_is_read_and_nothing_twice(request, tmp_path, engine):
    with strandline.open(tmp_path) as node:
        storage = None
        if engine == "kafka":
            storage = "kafka"
            configuration = KafkaConfiguration(request.getfixturevalue("kafka").bootstrap_servers, {})
            node.log.admin.add_storage(StorageInfo(storage, "kafka", kafka_configuration=configuration))
        node.journals.create("orders", partitions=1, storage=storage)
        writers = [Writer(tmp_path, "w0"), Writer(tmp_path, "w1")]
        try:
            for number in range(3):
                first, second = writers[-2:]
                enough = len(second.acknowledged) + 5
                until(lambda f=first: f.acknowledged, "an append")
                until(lambda s=second, e=enough: len(s.acknowledged) >= e, "appends of both")
                first.kill()
                replicate(node, "orders")
                writers.append(Writer(tmp_path, f"w{number + 2}"))
            until(lambda: writers[-1].acknowledged, "an append of the last")
        finally:
            for writer in writers:
                writer.kill()
        found = [
            (event.seq_nr, event.payload.data.decode().strip('"')) for event in node.journal("orders").read("a")
        ]
        assert [seq_nr for seq_nr, _ in found] == [*range(1, len(found) + 1)]
        for writer in writers:
            own = {seq_nr for seq_nr, name in found if name == writer.name}
            assert own >= {*writer.acknowledged}
            # At most the append that was in progress when it was killed is more than what it acknowledged.
            assert len(own) <= len(writer.acknowledged) + 1
        replicate(node, "orders")
        with strandline.open(tmp_path) as other:
            assert [event.seq_nr for event in other.journal("orders").read("a")] == [seq_nr for seq_nr, _ in found]
