"""Places at which a test kills or pauses this process: `STRANDLINE_TEST_FAILPOINT=<name>:kill` or `…:stop`.

Every step of the switch protocol has one. Without the variable a failpoint costs one comparison.
"""

from __future__ import annotations

import os
import signal
import time

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_armed, _, _how = os.environ.get("STRANDLINE_TEST_FAILPOINT", "").partition(":")


def hit(name: str) -> None:
    """Here the process dies or sleeps if a test asked for it; once."""
    global _armed  # noqa: PLW0603 - one failpoint per process
    if name == _armed:
        _armed = ""
        os.kill(os.getpid(), _SIGNALS[_how])
        time.sleep(0.2)  # until the signal has reached this thread as well: not one statement further
