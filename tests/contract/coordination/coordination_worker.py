"""A session in another process: `coordination_worker.py <url> <session_timeout_ms>`.

A test calls its methods and the functions below through `peers`.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from peers import say, serve
from strandline.clock import boot_ms
from strandline.coordination.connect import connect
from strandline.coordination.port import Coordination
from strandline.coordination.settings import CoordinationSettings


def bump_often(coordination: Coordination, threads: int, each: int) -> list[int]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda _: coordination.bump(), range(threads * each)))


def nap(coordination: Coordination, nap_ms: int) -> bool:
    """Wait until this process was paused for that long; return the first answer of `sure` after the pause."""
    before = boot_ms()
    say("awake")
    while (now := boot_ms()) - before < nap_ms:
        before = now
    return coordination.sure()


def watch(coordination: Coordination) -> str:
    """Record the times of the watcher's calls for `last_call`."""
    coordination.watch(lambda: CALLED_MS.append(boot_ms()))
    return "watching"


def last_call(_coordination: Coordination) -> int:
    """The time of the last call on the boot clock, which all processes share; 0 before the first call."""
    return CALLED_MS[-1] if CALLED_MS else 0


CALLED_MS: list[int] = []


def main(url: str, session_timeout_ms: str) -> None:
    where = Path(url.removeprefix("sqlite:"))
    settings = CoordinationSettings("" if url.startswith("sqlite:") else url, int(session_timeout_ms))
    serve(connect(settings, where), bump_often, nap, watch, last_call)


if __name__ == "__main__":
    main(*sys.argv[1:])
