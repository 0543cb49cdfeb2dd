"""Which slots a count over a time range needs, and how their counts become steps. Pure functions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from strandline.errors import Invalid
from strandline.schedule.model import LoadCounts, LoadStep

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
MAX_STEPS = 10_000
# Later than any message, and sums with it fit in 64 bits.
_END_MS = 2**62


class CountPlan(msgspec.Struct, frozen=True):
    """`cuts` divide the range into parts: the steps, and before and after the current time.

    A cut inside of an hour means that the minutes of that hour are needed; inside of a minute, its messages.
    """

    from_ms: int
    to_ms: int
    step_ms: int
    now_ms: int
    cuts: list[int]
    hours: list[int]
    minutes: list[int]


def plan(from_ms: int, to_ms: int, step_ms: int | None, now_ms: int) -> CountPlan:
    """Invalid if the range is empty or has too many steps. It may end later than any message can be due."""
    step = max(1, to_ms - from_ms) if step_ms is None else step_ms
    if not 0 <= from_ms < to_ms or step <= 0:
        raise Invalid(
            f"from ({from_ms}) must be at least 0 and before to ({to_ms}), and the step ({step}) more than 0"
        )
    if to_ms - from_ms > MAX_STEPS * step:
        raise Invalid(f"the range has more than {MAX_STEPS} steps; ask for longer steps or a shorter range")
    from_ms, to_ms, step = (min(ms, _END_MS) for ms in (from_ms, to_ms, step))
    inside = {now_ms + 1} if from_ms < now_ms + 1 < to_ms else set()
    cuts = sorted({*range(from_ms, to_ms, step), *inside, to_ms})
    hours = sorted({cut - cut % HOUR_MS for cut in cuts if cut % HOUR_MS})
    minutes = sorted({cut - cut % MINUTE_MS for cut in cuts if cut % MINUTE_MS})
    return CountPlan(from_ms, to_ms, step, now_ms, cuts, hours, minutes)


def total(plan: CountPlan, rows: Iterable[tuple[bool, int, int]]) -> LoadCounts:
    """Counts from rows of (held, a moment within one part of the range, number of messages)."""
    free, held = [0] * len(plan.cuts), [0] * len(plan.cuts)
    for is_held, moment_ms, count in rows:
        (held if is_held else free)[bisect_right(plan.cuts, moment_ms) - 1] += int(count)
    steps: dict[int, LoadStep] = {}
    for start, unheld, leased in zip(plan.cuts[:-1], free, held, strict=False):
        first = plan.from_ms + (start - plan.from_ms) // plan.step_ms * plan.step_ms
        before = steps.get(first, LoadStep(first, 0, 0, 0))
        ahead = start > plan.now_ms
        steps[first] = LoadStep(
            first,
            before.total + unheld + leased,
            before.waiting + (unheld if ahead else 0),
            before.processing + (leased if ahead else 0),
        )
    found = [*steps.values()]
    everything, waiting = sum(step.total for step in found), sum(step.waiting for step in found)
    processing = sum(step.processing for step in found)
    return LoadCounts(everything, waiting, processing, everything - waiting - processing, found)
