"""The settings of the server."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.config import setting


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
    max_header_bytes: int = setting(65_536, "Largest request head; a larger one is answered 431.", minimum=8192)
    max_streams: int = setting(1_000, "Most streams open at once on this node; more are answered 429.", minimum=1)
    stalled_client_ms: int = setting(
        60_000, "How long a client may stall while it sends a request or reads a stream.", minimum=100
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
