"""The settings of the server."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.config import setting
from strandline.errors import Invalid

# The lowest status that is logged.
_LOGGED = {"all": 0, "failed": 400, "none": 1000}


@dataclass(frozen=True)
class ServerSettings:
    hosts: str = setting(
        "",
        "Host names by which clients reach this node, separated by commas, besides `localhost`, `127.0.0.1`, "
        "`[::1]` and the address of `--host`. Requests for other hosts are answered 421. `*` accepts all; use it "
        "only behind a proxy that checks the host.",
    )
    max_body_bytes: int = setting(
        50_000_000, "Largest request body after decompression; a larger one is answered 413.", minimum=1024
    )
    max_pending_bytes: int = setting(
        200_000_000,
        "Most bytes in the bodies of all requests that are not answered yet, also after decompression; a request "
        "that exceeds it is answered 503.",
        minimum=1024,
    )
    max_header_bytes: int = setting(65_536, "Largest request head; a larger one is answered 431.", minimum=8192)
    max_connections: int = setting(
        10_000, "Most open connections; further ones wait. At most half of the process's open files.", minimum=16
    )
    max_streams: int = setting(
        1_000,
        "Most open streams, push sessions of schedules included; more are answered 503. At most half of the "
        "connections.",
        minimum=1,
    )
    max_stream_bytes: int = setting(
        200_000_000,
        "Most bytes that all streams read ahead of their clients. Every stream gets a share, at least one event. "
        "While the bytes are used up, new streams are answered 503.",
        minimum=1024,
    )
    stalled_client_ms: int = setting(
        60_000, "How long a client may stall while it sends a request or reads a stream.", minimum=100
    )
    log_requests: str = setting(
        "all", "Requests that get a line in the log: all, failed (with a status of 400 or more) or none."
    )
    drain_timeout_ms: int = setting(
        10_000,
        "The time in which a node stops. Before its end, requests without an outcome are answered 504 "
        "`outcome_unknown`.",
        minimum=0,
    )
    threads: int = setting(
        16, "Threads for calls that wait for one storage, and as many for the catalog and the archive.", minimum=1
    )
    max_waiting_calls: int = setting(
        1_000, "Requests that may wait for the threads of one storage; more are answered 503.", minimum=1
    )

    @property
    def logged_status(self) -> int:
        """The lowest status of requests that are logged."""
        if self.log_requests not in _LOGGED:
            raise Invalid(f"server.log_requests must be one of {', '.join(_LOGGED)}, not {self.log_requests!r}")
        return _LOGGED[self.log_requests]
