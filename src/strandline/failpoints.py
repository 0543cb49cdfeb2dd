"""Places where a test kills or pauses this process: `STRANDLINE_TEST_FAILPOINT=<name>:kill` or `<name>:stop`.

Every step of the switch protocol has a failpoint. `<name>:stop:3` pauses at the third hit. Without the variable
a failpoint costs one comparison.
"""

from __future__ import annotations

import os
import signal
import time

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_armed, _how, _left = "", "", 1


def arm(text: str) -> None:
    """Set the failpoint like the variable does; for processes that are forked after all imports."""
    global _armed, _how, _left  # noqa: PLW0603 - one failpoint per process
    _armed, _, rest = text.partition(":")
    _how, _, times = rest.partition(":")
    _left = int(times or 1)


def hit(name: str) -> None:
    """Kill or pause the process if this failpoint is armed; only once."""
    global _armed, _left  # noqa: PLW0603 - one failpoint per process
    if name != _armed:
        return
    _left -= 1
    if not _left:
        _armed = ""
        os.kill(os.getpid(), _SIGNALS[_how])
        time.sleep(0.2)  # no further statement runs before the signal takes effect


arm(os.environ.get("STRANDLINE_TEST_FAILPOINT", ""))
