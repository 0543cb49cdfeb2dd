"""The settings of the coordination."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.config import setting


@dataclass(frozen=True)
class CoordinationSettings:
    url: str = setting(
        "",
        "Coordination service: `zookeeper://host:port[,host:port…][/root]`. If empty: a file in the data "
        "directory, for the processes of one machine.",
    )
    session_timeout_ms: int = setting(
        6_000, "A process without a heartbeat for this long loses its locks and leases.", minimum=500
    )
    stall_timeout_ms: int = setting(
        600_000,
        "A process of a job loses its leases, as if it had ended, if no step of it succeeds for this long. Must "
        "be longer than the longest task of Spark.",
        minimum=1_000,
    )
