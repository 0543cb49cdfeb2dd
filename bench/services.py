"""The launchers of real services, shared with the tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from services import Server
from services.cache import cached, say
from services.cassandra import CassandraServer
from services.kafka import Broker
from services.postgres import PostgresServer
from services.process import environment
from services.service import Service
from services.valkey import ValkeyServer
from services.wrk import Load
from services.zookeeper import ZookeeperServer

__all__ = [
    "Broker",
    "CassandraServer",
    "Load",
    "PostgresServer",
    "Server",
    "Service",
    "ValkeyServer",
    "ZookeeperServer",
    "cached",
    "environment",
    "say",
]
