"""Tasks on another machine than the driver, simulated by a Spark that starts executors as processes."""

import json
import subprocess
import sys
from pathlib import Path

from services import environment
from strandline import EventType
from strandline.log import StorageInfo
from strandline.log.storage.registry import KafkaConfiguration


def test_sqlite_is_refused_and_kafka_is_read(tmp_path, platform, kafka):
    """Remote tasks cannot use SQLite files, and the error says what to do. They can read from Kafka.

    Spark's own settings file overrides our defaults.
    """
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions -Dwhose=theirs\n")
    configuration = KafkaConfiguration(kafka.bootstrap_servers)
    platform.log.admin.add_storage(StorageInfo("kafka", "kafka", kafka_configuration=configuration))
    for name in ("small", "large"):
        platform.log.create(EventType(name, partitions=2))
    platform.log.admin.switch("large", "kafka")
    platform.log.publish("large", [{"n": n} for n in range(10)]).raise_for_failed()
    platform.log.publish("small", [{"n": n} for n in range(10)]).raise_for_failed()
    program = Path(__file__).with_name("remote_master.py")
    command = [sys.executable, str(program), str(platform.data), "small", "large"]
    env = environment(SPARK_CONF_DIR=str(tmp_path))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers["kafka"] == "10"
    assert "SQLite files, which only this machine can read" in answers["sqlite"]
    assert "switch the event type to a Kafka storage first" in answers["sqlite"]
    assert "is a data directory of one machine" in answers["write"]
    whose, log_settings = answers["java"]
    assert (whose, log_settings.endswith("/log4j2.properties")) == ("theirs", True)
    assert sum(len(batch) for batch in platform.log.read("small")) == 10
