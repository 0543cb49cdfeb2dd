"""What the leasers of a node share: the store, the clocks, the news, and what they count."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from strandline.schedule.clocks import NodeClocks
from strandline.schedule.model import Leased
from strandline.schedule.news import News
from strandline.schedule.storage import ScheduleStore

#: A message that is leased later than this after it became available is late.
LATE_MS = 25


@dataclass(frozen=True)
class DeliveryContext:
    """`session_problem` says why the node must not lease, apart from its clock. Counters are by schedule."""

    node: str
    store: ScheduleStore
    clocks: NodeClocks
    news: News
    session_problem: Callable[[], str | None]
    leased: Counter[str] = field(default_factory=Counter)
    expired: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def count(self, schedule: str, leased: Leased) -> None:
        with self._counting:
            self.leased[schedule] += len(leased.leases)
            self.expired[schedule] += leased.expired
            self.dead[schedule] += leased.dead
            self.late[schedule] += sum(waited > LATE_MS for waited in leased.waited_ms)

    def problem(self, longest_ms: int) -> str | None:
        """Why this node is degraded: it gives no leases."""
        return self.session_problem() or self.clocks.problem(longest_ms)
