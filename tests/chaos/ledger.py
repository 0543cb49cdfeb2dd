"""A record of all publish attempts and their outcomes, compared with the stored events."""

import threading
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Every event has an id (publisher, number). The numbers of a publisher only increase."""

    acknowledged: set = field(default_factory=set)
    attempted: set = field(default_factory=set)
    refused: set = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def attempt(self, ids) -> None:
        with self.lock:
            self.attempted.update(ids)
            self.refused.difference_update(ids)

    def acknowledge(self, ids) -> None:
        with self.lock:
            self.acknowledged.update(ids)

    def refuse(self, ids) -> None:
        """Record that these events were refused. They must not be stored unless they are attempted again."""
        with self.lock:
            self.refused.update(ids)

    def check(self, stored: dict[str, list[tuple[int, int]]]) -> None:
        """Compare with `stored`, the ids of every partition in the order in which they are read.

        A publisher sends larger numbers only after the response to a number. So what is stored before an
        acknowledged event has smaller numbers. An event without a response can be stored at any later time, for
        example by a broker that still has the request of a node that was killed.
        """
        seen: dict[tuple[int, int], int] = defaultdict(int)
        for partition, ids in stored.items():
            newest: dict[int, int] = {}
            for publisher, number in ids:
                seen[publisher, number] += 1
                before = newest.get(publisher, -1)
                if (publisher, number) in self.acknowledged:
                    assert before < number, (
                        f"publisher {publisher}, partition {partition}: {number} after {before}"
                    )
                newest[publisher] = max(before, number)
        doubled = [event for event, times in seen.items() if times > 1]
        assert not doubled, f"read more than once: {doubled[:5]}"
        lost = self.acknowledged - seen.keys()
        assert not lost, f"{len(lost)} acknowledged events are lost, for example {sorted(lost)[:5]}"
        invented = seen.keys() - self.attempted
        assert not invented, f"never published: {sorted(invented)[:5]}"
        kept = self.refused & seen.keys()
        assert not kept, f"{len(kept)} events were refused and are stored, for example {sorted(kept)[:5]}"
