"""Flags the directories of hours and days once all directories in them are flagged. One pass, children first."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from strandline import failpoints
from strandline.archive import flags
from strandline.archive.files import Files
from strandline.archive.layout import READY, Layout, at
from strandline.archive.ledger import Ledger
from strandline.archive.model import DAY_MS, HOUR_MS, Period, Term, day_of, hour_of
from strandline.errors import Conflict
from strandline.logging_setup import fields

log = logging.getLogger(__name__)

# How far back missing flags are written again.
_REPAIR_MS = 2 * DAY_MS

#: For each directory, by path, the directories in it that must be flagged first.
Needs = dict[str, set[str]]
LayoutOf = Callable[[str], Layout]


def hour_needs(hour_ms: int, terms: Iterable[Term], layout_of: LayoutOf) -> Needs:
    """The directories of all event types configured for the hour, by the path of the hour's directory."""
    found: Needs = defaultdict(set)
    for layout in _configured(hour_ms, terms, layout_of):
        if layout.hour_template is not None:
            found[at(layout.hour_template, hour_ms)].add(layout.directory(hour_ms))
    return found


def day_needs(day_ms: int, terms: Collection[Term], layout_of: LayoutOf) -> Needs:
    """The directories of all hours of the day, by the path of the day's directory.

    Without days that have an hour for which no event type was configured.
    """
    found: Needs = defaultdict(set)
    hours: dict[str, set[int]] = defaultdict(set)
    for hour_ms in range(day_ms, day_ms + DAY_MS, HOUR_MS):
        for layout in _configured(hour_ms, terms, layout_of):
            if layout.day_template is not None:
                path = at(layout.day_template, day_ms)
                found[path].add(at(layout.hour_template or layout.template, hour_ms))
                hours[path].add(hour_ms)
    return {path: needed for path, needed in found.items() if len(hours[path]) == DAY_MS // HOUR_MS}


def _configured(hour_ms: int, terms: Iterable[Term], layout_of: LayoutOf) -> list[Layout]:
    return [layout_of(term.event_type) for term in terms if term.covers(hour_ms)]


def children(needed: Collection[str], revisions: Mapping[str, int]) -> dict[str, int] | None:
    """The revisions of all needed directories; None while one of them has no flag."""
    if not all(revisions.get(path) for path in needed):
        return None
    return {path: revisions[path] for path in sorted(needed)}


# Hours before days: the hours that a pass flags count for their days.
_LEVELS = ((hour_needs, hour_of, HOUR_MS), (day_needs, day_of, DAY_MS))


class Propagator:
    """Several may run at once: revisions only grow, in the ledger and in the files."""

    def __init__(self, ledger: Ledger, files: Files, layout_of: LayoutOf) -> None:
        self._ledger = ledger
        self._files = files
        self._layout_of = layout_of

    def run(self, terms: Sequence[Term], *, repair: bool = False) -> int:
        """Flag every period that has become complete or has changed; returns how many."""
        now_ms = self._ledger.now_ms()
        for period in self._ledger.periods.unwritten():
            self._write(period)
        flagged = 0
        for needs_of, start_of, length_ms in _LEVELS:
            unsettled = self._ledger.periods.unsettled()
            for start_ms in sorted({start_of(start_ms) for start_ms in unsettled.values()}):
                for path, needed in needs_of(start_ms, terms, self._layout_of).items():
                    if start_ms + length_ms <= now_ms and not needed.isdisjoint(unsettled):
                        flagged += self._flag(path, start_ms, needed)
        self._settle_top_level(terms)
        if repair:
            for period in self._ledger.periods.between(now_ms - _REPAIR_MS, now_ms):
                self._put(period)
        return flagged

    def _flag(self, path: str, start_ms: int, needed: Collection[str]) -> bool:
        found = children(needed, self._ledger.periods.revisions(needed))
        if found is None:
            return False
        failpoints.hit("archive.period")
        try:
            period = self._ledger.periods.flag(path, start_ms, found)
        except Conflict:
            return False  # another process has flagged newer revisions
        if period.written < period.revision:
            self._write(period)
        self._ledger.periods.settle(found)
        return period.written < period.revision

    def _write(self, period: Period) -> None:
        failpoints.hit("archive.period-write")
        self._put(period)
        failpoints.hit("archive.period-confirm")
        self._ledger.periods.confirm(period)
        log.info("period is ready", extra=fields(path=period.path, revision=period.revision))

    def _put(self, period: Period) -> None:
        flags.write_period(self._files, f"{period.path}/{READY}", period)

    def _settle_top_level(self, terms: Sequence[Term]) -> None:
        """Settle directories that belong to no directory above, so that they are not examined in every pass.

        Hours that became part of a term after the terms were read are left to the next pass.
        """
        unsettled = self._ledger.periods.unsettled()
        above: set[str] = set()
        known = self._configured_directories(unsettled.values(), terms)
        for needs_of, start_of, _ in _LEVELS:
            for start_ms in {start_of(start_ms) for start_ms in unsettled.values()}:
                needs = needs_of(start_ms, terms, self._layout_of)
                known.update(needs)
                above.update(*needs.values())
        alone = [path for path in unsettled if path in known and path not in above]
        if alone:
            self._ledger.periods.settle(self._ledger.periods.revisions(alone))

    def _configured_directories(self, starts_ms: Iterable[int], terms: Sequence[Term]) -> set[str]:
        return {
            layout.directory(start_ms)
            for start_ms in {*starts_ms}
            for layout in _configured(start_ms, terms, self._layout_of)
        }
