"""The settings of the coordination."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.config import setting


@dataclass(frozen=True)
class CoordinationSettings:
    url: str = setting(
        "",
        "Where processes find each other: `zookeeper://host:port[,host:port…][/root]`; empty: a file in the data "
        "directory, for the processes of one machine.",
    )
    session_timeout_ms: int = setting(
        6_000, "After how long without a sign of life a process counts as gone.", minimum=500
    )
