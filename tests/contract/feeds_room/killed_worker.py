"""Another process that appends an entry to two feeds, one of which cannot be reached, and is killed.

usage: killed_worker.py DATA [recorded]

With `recorded` it is killed when the operation is recorded, but not applied.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from partly_down import PartlyDown

from strandline.clock import ManualClock
from strandline.feeds import Entry
from strandline.platform import Platform
from strandline.settings import Settings


def main(data: str, when: str = "") -> None:
    node = Platform(Path(data), Settings(), ManualClock(1_700_000_001_000))
    if when == "recorded":
        node.feeds.store().apply = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]  # a crash
        node.feeds.append(Entry(7), ["ada", "bob"])
    node.feeds._opened = PartlyDown(node.feeds.store(), {"bob"})
    if node.feeds.append(Entry(7), ["ada", "bob"]) == 1:  # acknowledged
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
