"""Real services for tests and benchmarks: each is a process on loopback with a free port and a log file.

`server` runs Strandline itself. The other modules run one product each and are imported by name, because each
needs the driver of its product: `from services.kafka import Broker`.
"""

from services.process import DEADLINE_S, Process, environment, free_port, is_stopped, until
from services.server import CLIENT, STRANDLINE, Server, Up, run_cli
from services.service import Service

__all__ = [
    "CLIENT",
    "DEADLINE_S",
    "STRANDLINE",
    "Process",
    "Server",
    "Service",
    "Up",
    "environment",
    "free_port",
    "is_stopped",
    "run_cli",
    "until",
]
