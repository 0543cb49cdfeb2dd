"""Flags the directories of hours and days once all directories in them are flagged. One pass, children first."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from strandline import failpoints
from strandline.archive import flags, propagation
from strandline.archive.files import Files
from strandline.archive.layout import READY
from strandline.archive.ledger import Ledger
from strandline.archive.model import DAY_MS, HOUR_MS, Period, Term, day_of, hour_of
from strandline.archive.propagation import LayoutOf
from strandline.errors import Conflict
from strandline.logging_setup import fields

log = logging.getLogger(__name__)

# How far back missing flags are written again.
_REPAIR_MS = 2 * DAY_MS


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
        for needs_of, start_of, length_ms in (
            (propagation.hour_needs, hour_of, HOUR_MS),
            (propagation.day_needs, day_of, DAY_MS),
        ):
            # Read again: the hours that were just flagged count for their days.
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
        children = propagation.children(needed, self._ledger.periods.revisions(needed))
        if children is None:
            return False
        failpoints.hit("archive.period")
        try:
            period = self._ledger.periods.flag(path, start_ms, children)
        except Conflict:
            return False  # another process has flagged newer revisions
        if period.written < period.revision:
            self._write(period)
        self._ledger.periods.settle(children)
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
        """Settle directories that belong to no directory above, so that they are not examined in every pass."""
        unsettled = self._ledger.periods.unsettled()
        above: set[str] = set()
        for hour_ms in {hour_of(start_ms) for start_ms in unsettled.values()}:
            above.update(*propagation.hour_needs(hour_ms, terms, self._layout_of).values())
        for day_ms in {day_of(start_ms) for start_ms in unsettled.values()}:
            above.update(*propagation.day_needs(day_ms, terms, self._layout_of).values())
        alone = [path for path in unsettled if path not in above]
        if alone:
            self._ledger.periods.settle(self._ledger.periods.revisions(alone))
