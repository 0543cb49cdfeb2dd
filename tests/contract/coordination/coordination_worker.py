"""Another process at a coordination: `coordination_worker.py <url> <session_timeout_ms>`.

A line `["lock", "name", "value"]` calls that method, and a line with its answer or its error comes back.
"""

from __future__ import annotations

import json
import sys
import threading
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
    """Wait until this process was stopped for that long, and woken; what `sure` says first thing after that."""
    before = boot_ms()
    say(answer="awake")
    while (now := boot_ms()) - before < nap_ms:
        before = now
    return coordination.sure()


def watch(coordination: Coordination) -> str:
    """From now on `news` waits for a call."""
    coordination.watch(NEWS.set)
    return "watching"


def news(_coordination: Coordination, seconds: float) -> bool:
    return NEWS.wait(seconds)


def seen(_coordination: Coordination) -> None:
    NEWS.clear()


NEWS = threading.Event()
ACTS = {act.__name__: act for act in (bump_often, nap, watch, news, seen)}


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
