"""The paths of files. Pure functions of a template such as `%Y-%m-%d/%H/{event_type}`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from strandline.archive.model import Kind
from strandline.errors import Invalid

STAGING = "_staging"
QUARANTINE = "_quarantine"
READY = "_READY"
LATE = "_LATE"
DATA = "data"

_NAME = "{event_type}"
_DIRECTIVE = re.compile(r"%(.)", re.DOTALL)
_DAY = frozenset("Ymd")
_HOUR = _DAY | {"H"}


class Layout:
    """The directories of one event type. Event types whose templates share parents share those directories."""

    def __init__(self, template: str, event_type: str) -> None:
        """Invalid if hours or event types would share a directory, or a part has a reserved name."""
        _check(template)
        self.event_type = event_type
        self.template = template.replace(_NAME, event_type)
        parts = self.template.split("/")
        hour = _shortest(parts, _HOUR)
        day = _shortest(parts, _DAY)
        #: The directory of all event types; None if the hour's directory belongs to this event type alone.
        self.hour_template = "/".join(parts[:hour]) if hour < len(parts) else None
        self.day_template = "/".join(parts[:day]) if day < hour else None

    def directory(self, hour_ms: int) -> str:
        return at(self.template, hour_ms)

    def data(self, hour_ms: int) -> str:
        return f"{self.directory(hour_ms)}/{DATA}"

    def flags(self, hour_ms: int) -> tuple[str, str]:
        """The paths of an hour's `_READY`: beside the files, and in the directory above."""
        return f"{self.data(hour_ms)}/{READY}", f"{self.directory(hour_ms)}/{READY}"

    def late(self, hour_ms: int) -> str:
        return f"{self.directory(hour_ms)}/{LATE}"

    def staging(self, run: str = "") -> str:
        return f"{STAGING}/{self.event_type}/{run}".rstrip("/")

    def quarantine(self, day_ms: int, name: str) -> str:
        return f"{QUARANTINE}/{self.event_type}/{at('%Y-%m-%d', day_ms)}/{name}"


def at(template: str, ms: int) -> str:
    return datetime.fromtimestamp(ms // 1000, UTC).strftime(template)


def file_name(event_type: str, incarnation: int, kind: Kind, place: tuple[int, int, int, int]) -> str:
    """A unique name from event type, partition, timeline, first and last offset."""
    again = f"-r{incarnation}" if incarnation > 1 else ""
    late = "late-" if kind == "late" else ""
    # Patterns like `**/*.parquet` must not find quarantined records.
    suffix = ".quarantined" if kind == "quarantine" else ".parquet"
    partition, timeline, first, last = place
    return f"{late}{event_type}{again}-{partition:04d}-{timeline:04d}-{first:018d}-{last:018d}{suffix}"


def _shortest(parts: Sequence[str], wanted: frozenset[str]) -> int:
    """The smallest number of leading parts that contain all these directives."""
    counts = range(1, len(parts) + 1)
    return next(count for count in counts if wanted <= {*_DIRECTIVE.findall("/".join(parts[:count]))})


def _check(template: str) -> None:
    directives = set(_DIRECTIVE.findall(template))
    if directives != _HOUR or template.count(_NAME) != 1:
        raise Invalid(
            f"archive.template must have %Y, %m, %d, %H and {_NAME}, and no other directive, not {template!r:.100}"
        )
    for part in template.split("/"):
        if not part or part.startswith((".", "_")) or "\\" in part:
            raise Invalid(
                f"archive.template has the part {part!r:.60}; parts must not be empty, start with . or _, or "
                "contain a backslash"
            )
