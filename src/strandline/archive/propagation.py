"""The rules for when the directory of an hour or a day is complete. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

from strandline.archive.layout import Layout, at
from strandline.archive.model import DAY_MS, HOUR_MS, Term

#: For each directory, by path, the directories in it that must be flagged first.
Needs = dict[str, frozenset[str]]
LayoutOf = Callable[[str], Layout]


def hour_needs(hour_ms: int, terms: Iterable[Term], layout_of: LayoutOf) -> Needs:
    """The directories of all event types configured for the hour, by the path of the hour's directory."""
    found: dict[str, set[str]] = defaultdict(set)
    for layout in _configured(hour_ms, terms, layout_of):
        if layout.hour_template is not None:
            found[at(layout.hour_template, hour_ms)].add(layout.directory(hour_ms))
    return {path: frozenset(needed) for path, needed in found.items()}


def day_needs(day_ms: int, terms: Collection[Term], layout_of: LayoutOf) -> Needs:
    """The directories of all hours of the day, by the path of the day's directory.

    Without days that have an hour for which no event type was configured.
    """
    found: dict[str, set[str]] = defaultdict(set)
    hours: dict[str, set[int]] = defaultdict(set)
    for hour_ms in range(day_ms, day_ms + DAY_MS, HOUR_MS):
        for layout in _configured(hour_ms, terms, layout_of):
            if layout.day_template is not None:
                path = at(layout.day_template, day_ms)
                found[path].add(at(layout.hour_template or layout.template, hour_ms))
                hours[path].add(hour_ms)
    return {path: frozenset(found[path]) for path in found if len(hours[path]) == DAY_MS // HOUR_MS}


def _configured(hour_ms: int, terms: Iterable[Term], layout_of: LayoutOf) -> list[Layout]:
    return [layout_of(term.event_type) for term in terms if term.covers(hour_ms)]


def children(needed: Collection[str], revisions: Mapping[str, int]) -> dict[str, int] | None:
    """The revisions of all needed directories; None while one of them has no flag."""
    if not all(revisions.get(path) for path in needed):
        return None
    return {path: revisions[path] for path in sorted(needed)}
