"""When a directory above those of event types is complete. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.archive.model import DAY_MS, HOUR_MS, Term


def hour_children(
    hour_ms: int, now_ms: int, terms: Iterable[Term], revisions: Mapping[str, int]
) -> dict[str, int] | None:
    """The flag's revision of every event type that was configured for the hour; None while one has none."""
    names = {term.event_type for term in terms if term.covers(hour_ms)}
    if now_ms < hour_ms + HOUR_MS or not names or not all(revisions.get(name) for name in names):
        return None
    return {name: revisions[name] for name in sorted(names)}


def day_children(day_ms: int, now_ms: int, revisions: Mapping[int, int]) -> dict[str, int] | None:
    """The flag's revision of every hour of the day; None while one has none."""
    hours = range(day_ms, day_ms + DAY_MS, HOUR_MS)
    if now_ms < day_ms + DAY_MS or not all(revisions.get(hour) for hour in hours):
        return None
    return {f"{number:02d}": revisions[hour] for number, hour in enumerate(hours)}
