"""The real services that tests start, for the rows that need them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from kafka_broker import running_broker
from postgres_server import running_postgres
from services import running_server
from zookeeper_server import running_zookeeper

__all__ = ["running_broker", "running_postgres", "running_server", "running_zookeeper"]
