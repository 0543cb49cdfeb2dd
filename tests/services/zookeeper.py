"""ZooKeeper: one process, run from PySpark's own jars."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from services.java import JavaService

# Ticks are short because the shortest session is two ticks. Tests check coordination, not durability.
_CONFIGURATION = """
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
tickTime=200
maxSessionTimeout={max_session_ms}
maxClientCnxns=0
forceSync=no
admin.enableServer=false
4lw.commands.whitelist=*
"""


class ZookeeperServer(JavaService):
    name = "zookeeper"
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    heap = "256m"
    jvm_options = ("-XX:TieredStopAtLevel=1",)
    #: The longest session it grants.
    max_session_ms = 600_000

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.hosts = f"127.0.0.1:{self.port}"
        self._settings = self.folder / "zoo.cfg"
        self._settings.write_text(
            _CONFIGURATION.format(data=self.folder / "data", port=self.port, max_session_ms=self.max_session_ms)
        )

    def arguments(self) -> Sequence[str]:
        return [str(self._settings)]

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"srvr")  # `ruok` is answered before requests are served
                return b"Mode:" in connection.makefile("rb").read()
        except OSError:
            return False
