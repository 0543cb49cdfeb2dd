"""Tasks on another machine than the driver: played by a Spark that starts its executors as processes."""

import json
import subprocess
import sys
from pathlib import Path

from strandline import EventType
from strandline.log import StorageInfo
from strandline.log.model import KafkaConfiguration


def test_sqlite_is_refused_and_kafka_is_read(platform, kafka):
    """Files of one machine are refused in words that say what to do; addresses of brokers travel with the task."""
    configuration = KafkaConfiguration(kafka.bootstrap_servers)
    platform.log.admin.add_storage(StorageInfo("kafka", "kafka", kafka_configuration=configuration))
    for name in ("small", "large"):
        platform.log.create(EventType(name, partitions=2))
    platform.log.admin.switch("large", "kafka")
    platform.log.publish("large", [{"n": n} for n in range(10)]).raise_for_failed()
    platform.log.publish("small", [{"n": n} for n in range(10)]).raise_for_failed()
    program = Path(__file__).with_name("remote_master.py")
    command = [sys.executable, str(program), str(platform.data), "small", "large"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers["kafka"] == "10"
    assert "SQLite files, which only this machine can read" in answers["sqlite"]
    assert "switch the event type to a Kafka storage first" in answers["sqlite"]
    assert "is a data directory of one machine" in answers["write"]
    assert sum(len(batch) for batch in platform.log.read("small")) == 10
