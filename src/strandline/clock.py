"""Clocks and RFC 3339 times.

Rules take milliseconds as arguments; code that needs the current time gets a `Clock`. For tests,
`STRANDLINE_TEST_CLOCK=<start_ms>,<speed>` makes the clock of a process start elsewhere and run faster. A start
with a sign is relative to the real time: `+500,1` is a clock that is half a second ahead.
"""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

# Unlike ISO 8601, which `fromisoformat` parses, RFC 3339 has no hour 24.
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d[Tt ](?:[01]\d|2[0-3]):\d\d:)([0-5]\d|60)((?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:[0-5]\d))", re.ASCII
)
# Most times: days that the month has, offsets that Python accepts, no leap seconds. Lines of them are one match.
_PLAIN = (
    r"(?:(?!0000)[0-9]{4}-"
    r"(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    r"|[0-9]{2}(?:0[48]|[2468][048]|[13579][26])-02-29)"
    r"[Tt ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_PLAIN_LINES = re.compile(rf"(?:{_PLAIN}\n)*+").fullmatch
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Only Linux has CLOCK_BOOTTIME; elsewhere the monotonic clock includes sleep.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(ABC):
    """Wall-clock time for records and deadlines, and a steady clock for waiting."""

    @abstractmethod
    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""

    @abstractmethod
    def steady_ms(self) -> int:
        """Milliseconds that never go backwards; only differences are meaningful."""


class SystemClock(Clock):
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class FastClock(Clock):
    """A clock that starts at `start_ms` and runs `speed` times as fast as the real one."""

    def __init__(self, start_ms: int, speed: float) -> None:
        self._start_ms = start_ms
        self._speed = speed
        self._origin = time.time_ns()

    def now_ms(self) -> int:
        return self._start_ms + int((time.time_ns() - self._origin) * self._speed) // 1_000_000

    def steady_ms(self) -> int:
        return int(time.monotonic_ns() * self._speed) // 1_000_000


class ManualClock(Clock):
    """A clock that changes only when a test advances it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def steady_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        self._now_ms += ms


def system_clock() -> Clock:
    """The clock of this process: the real one, unless the test hook is set."""
    hook = os.environ.get("STRANDLINE_TEST_CLOCK")
    if not hook:
        return SystemClock()
    start, speed = hook.split(",")
    origin_ms = SystemClock().now_ms() if start.startswith(("+", "-")) else 0
    return FastClock(origin_ms + int(start), float(speed))


def boot_ms() -> int:
    """Milliseconds since the machine started, including sleep; the same for all processes of the machine.

    Used for leases between processes: the test hook does not affect it, and it cannot be set back.
    """
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


def boot_id() -> str:
    """Identifies one start of the machine; `boot_ms` of different starts must not be compared."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return "unknown"


def to_rfc3339(ms: int) -> str:
    """`1700000000123` as `2023-11-14T22:13:20.123Z`."""
    return f"{_second(ms // 1000)}.{ms % 1000:03d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    """Cached, because most times that a process writes are close to each other."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()


def parse_rfc3339(text: str) -> int:
    """Milliseconds of an RFC 3339 time with an offset; up to nine fractional digits. ValueError otherwise."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.60} is not a time like 2024-05-01T12:00:00.000Z (the offset is required)")
    minute, second, rest = match.groups()
    leap = second == "60"  # a leap second, which Python does not accept
    moment = datetime.fromisoformat(f"{minute}{'59' if leap else second}{rest.upper()}")
    return (moment - _EPOCH) // _MILLISECOND + 1000 * leap


def check_rfc3339(texts: Sequence[str]) -> None:
    """Raise the first error that `parse_rfc3339` has with one of the texts, in a fraction of its time."""
    lines = "\n".join(texts) + "\n"
    if lines.count("\n") != len(texts) or _PLAIN_LINES(lines) is None:
        for text in texts:
            parse_rfc3339(text)
