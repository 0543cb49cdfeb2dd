"""A log with a constant load on a fast clock, and the Spark application that archives it."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from services import STRANDLINE, Process, environment
from strandline.clock import FastClock, to_rfc3339
from strandline.log import EventType
from strandline.platform import Platform
from strandline.settings import Settings

HOUR_MS = 3_600_000
GRACE_MS = 30_000
NAME = "orders"


class Life:
    """A platform on a fast clock. Processes start with the current time of this clock."""

    def __init__(self, data: Path, start_ms: int, speed: float) -> None:
        self.data = data
        self.speed = speed
        self.clock = FastClock(start_ms, speed)
        self.platform = Platform(data, Settings(), self.clock)
        self.platform.log.create(EventType(NAME, partitions=3))

    def spark(self, log: Path, *more: str, ahead_ms: int = 0, speed: float | None = None) -> Process:
        """Start `strandline pipeline run archive`."""
        env = environment(
            STRANDLINE_TEST_CLOCK=f"{self.clock.now_ms() + ahead_ms},{speed or self.speed}",
            STRANDLINE_ARCHIVE__MIN_RECORDS="1",
            STRANDLINE_ARCHIVE__INTERVAL_MS="50",
            STRANDLINE_COORDINATION__SESSION_TIMEOUT_MS="2000",
        )
        command = [STRANDLINE, "pipeline", "run", "archive", "--master", "local[2]", "--data", str(self.data)]
        return Process([*command, *more], log, env=env)

    # -- the result

    def records(self) -> dict[tuple[int, int, int], dict[str, Any]]:
        """Every event by partition, timeline and offset."""
        return {
            (int(batch.partition), batch.timeline, offset): json.loads(value)
            for batch in self.platform.log.read(NAME)
            for offset, value in zip(
                batch.records["offset"].to_pylist(), batch.records["value"].to_pylist(), strict=True
            )
        }

    def archived(self) -> tuple[Counter[tuple[int, int, int]], dict[tuple[int, int, int], Path]]:
        """How often each record is in a published file, and the file."""
        found: Counter[tuple[int, int, int]] = Counter()
        where: dict[tuple[int, int, int], Path] = {}
        root = self.data / "archive"
        for path in [*root.rglob("*.parquet"), *root.rglob("*.quarantined")]:
            for row in pq.read_table(path, columns=["partition", "timeline", "offset"]).to_pylist():
                place = (row["partition"], row["timeline"], row["offset"])
                found[place] += 1
                where[place] = path
        return found, where


class Publisher(threading.Thread):
    """Publishes current events; some are out of order, some hours late, some have no readable time."""

    def __init__(self, life: Life, seed: int) -> None:
        super().__init__(name="publisher")
        self.life = life
        self.random = random.Random(seed)
        self.stopping = threading.Event()
        #: By event id: the hour, None without a readable time, and when the event was acknowledged.
        self.acknowledged: dict[int, tuple[int | None, int]] = {}
        self._next = 0

    def run(self) -> None:
        while not self.stopping.wait(0.02):
            events = [self._event() for _ in range(self.random.randrange(1, 60))]
            self.life.platform.log.publish(NAME, [event for event, _ in events]).raise_for_failed()
            now_ms = self.life.clock.now_ms()
            for event, hour_ms in events:
                self.acknowledged[event["id"]] = (hour_ms, now_ms)

    def _event(self) -> tuple[dict[str, Any], int | None]:
        self._next += 1
        if self.random.random() < 0.01:
            return {"id": self._next, "metadata": {"occurred_at": "yesterday"}}, None
        back_ms = self.random.choices([0, 20 * 60_000, 3 * HOUR_MS], [90, 8, 2])[0]
        time_ms = self.life.clock.now_ms() - int(self.random.random() * back_ms)
        event = {"id": self._next, "metadata": {"occurred_at": to_rfc3339(time_ms)}}
        return event, time_ms - time_ms % HOUR_MS

    def stop(self) -> None:
        self.stopping.set()
        self.join()
