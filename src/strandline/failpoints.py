"""Places at which a test kills or pauses this process: `STRANDLINE_TEST_FAILPOINT=<name>:kill` or `…:stop`.

Every step of the switch protocol has one. `<name>:stop:3` lets it pass twice first. Without the variable a
failpoint costs one comparison.
"""

from __future__ import annotations

import os
import signal
import time

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_armed, _how, _left = "", "", 1


def arm(text: str) -> None:
    """As the variable would; for processes that are forked with everything imported."""
    global _armed, _how, _left  # noqa: PLW0603 - one failpoint per process
    _armed, _, rest = text.partition(":")
    _how, _, times = rest.partition(":")
    _left = int(times or 1)


def hit(name: str) -> None:
    """Here the process dies or sleeps if a test asked for it; once."""
    global _armed, _left  # noqa: PLW0603 - one failpoint per process
    if name != _armed:
        return
    _left -= 1
    if not _left:
        _armed = ""
        os.kill(os.getpid(), _SIGNALS[_how])
        time.sleep(0.2)  # until the signal has reached this thread as well: not one statement further


arm(os.environ.get("STRANDLINE_TEST_FAILPOINT", ""))
