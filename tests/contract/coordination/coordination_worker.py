"""A session in a process of its own: `coordination_worker.py <url> <session_timeout_ms>`.

An input line `["lock", "name", "value"]` calls that method; an output line has its result or its error.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from strandline.clock import boot_ms
from strandline.coordination.connect import connect
from strandline.coordination.port import Coordination
from strandline.coordination.settings import CoordinationSettings
from strandline.errors import StrandlineError


def say(**answer: object) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201 - this is how it answers


def bump_often(coordination: Coordination, threads: int, each: int) -> list[int]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda _: coordination.bump(), range(threads * each)))


def nap(coordination: Coordination, nap_ms: int) -> bool:
    """Wait until this process was stopped for that long and woken. Return what `sure` says right after that."""
    before = boot_ms()
    say(answer="awake")
    while (now := boot_ms()) - before < nap_ms:
        before = now
    return coordination.sure()


def watch(coordination: Coordination) -> str:
    """From now on `last_call` knows when the watcher was called."""
    coordination.watch(lambda: CALLED_MS.append(boot_ms()))
    return "watching"


def last_call(_coordination: Coordination) -> int:
    """On the machine's boot clock, which all processes share; 0 before the first call."""
    return CALLED_MS[-1] if CALLED_MS else 0


CALLED_MS: list[int] = []
ACTS = {act.__name__: act for act in (bump_often, nap, watch, last_call)}


def main(url: str, session_timeout_ms: str) -> None:
    where = Path(url.removeprefix("sqlite:"))
    settings = CoordinationSettings("" if url.startswith("sqlite:") else url, int(session_timeout_ms))
    coordination = connect(settings, where)
    say(answer="ready")
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            if name in ACTS:
                say(answer=ACTS[name](coordination, *arguments))
            else:
                say(answer=getattr(coordination, name)(*arguments))
        except StrandlineError as error:
            say(error=type(error).__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
