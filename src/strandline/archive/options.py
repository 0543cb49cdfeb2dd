"""The archive settings as they apply to one event type, validated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from strandline.archive import shifts
from strandline.archive.layout import Layout
from strandline.archive.model import LatePolicy, Lost, OnGap, ReadyRule
from strandline.archive.settings import ArchiveSettings
from strandline.archive.times import EventTimes
from strandline.errors import Invalid

# A part that may be the value for one event type.
_SPECIAL = re.compile(r"[^%{=/]+=").match


@dataclass(frozen=True)
class ArchiveOptions:
    event_type: str
    settings: ArchiveSettings
    layout: Layout
    time_field: str
    ready_rule: ReadyRule
    late: LatePolicy
    on_unavailable: Lost
    on_gap: OnGap

    @classmethod
    def of(cls, settings: ArchiveSettings, event_type: str) -> ArchiveOptions:
        """Invalid if a setting has a value that cannot work."""
        shifts.check(settings.duration_ms, settings.grace_ms)
        time_field = for_type(settings.time_field, event_type)
        EventTimes(time_field)
        return cls(
            event_type,
            settings,
            Layout(template_for(settings.template, event_type), event_type),
            time_field,
            _one_of("ready_rule", settings.ready_rule, ReadyRule),
            _one_of("late", settings.late, LatePolicy),
            _one_of("on_unavailable", settings.on_unavailable, Lost),
            _one_of("on_gap", settings.on_gap, OnGap),
        )


def configured(text: str, existing: Sequence[str]) -> list[str]:
    """The event types that a setting like `a,b`, `*` or `*,-c` names."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    left_out = {part[1:] for part in parts if part.startswith("-")}
    named = [part for part in parts if not part.startswith("-") and part != "*"]
    return sorted({*named, *(existing if "*" in parts else ())} - left_out)


def for_type(text: str, event_type: str) -> str:
    """The value for an event type from a setting like `general,orders=special`."""
    found = ""
    for part in text.split(","):
        name, is_special, special = part.strip().partition("=")
        if not is_special:
            found = found or part.strip()
        elif name.strip() == event_type:
            return special.strip()
    return found


def template_for(text: str, event_type: str) -> str:
    """The same for templates, which may begin with a name and `=` themselves: `date=%Y-%m-%d/hour=%H/…`.

    The general template is the first part that does not, otherwise the first part.
    """
    parts = [part.strip() for part in text.split(",")]
    general = next((part for part in parts if not _SPECIAL(part)), parts[0])
    specials = (part.partition("=") for part in parts if part is not general)
    return next((special.strip() for name, _, special in specials if name.strip() == event_type), general)


def _one_of(name: str, value: str, choices: Any) -> Any:
    if name == "ready_rule" and value == "seed":
        raise Invalid("archive.ready_rule: the rule 'seed' is now called 'timestamps'; change the setting")
    if value not in get_args(choices):
        raise Invalid(f"archive.{name} must be one of {', '.join(get_args(choices))}, not {value!r:.60}")
    return value
