"""`kill -9` of the Spark application that archives, while events are published for many hours."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest
from archive_life import GRACE_MS, HOUR_MS, NAME, Life, Publisher

from services import Process, run_cli, until
from strandline.archive.model import parse_hour
from strandline.clock import parse_rfc3339
from strandline.errors import StrandlineError

START_MS = parse_rfc3339("2024-05-01T12:00:00Z")
# An hour is six seconds.
SPEED = 600.0


def epoch(life: Life) -> int:
    try:
        standing = life.platform.archive.ledger.standing(NAME)
    except StrandlineError:
        return 0
    return standing.epoch if standing else 0


@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_every_record_is_in_one_file_however_often_spark_dies(tmp_path, rounds):
    """Every record is in one file or in quarantine. Flagged hours are verified and were complete when flagged."""
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    dice = random.Random(seed)
    began = time.monotonic()
    life = Life(tmp_path / "data", START_MS, SPEED)
    publisher = Publisher(life, seed)
    publisher.start()
    log = tmp_path / "spark.log"
    running: list[Process] = []
    try:
        for number in range(rounds):
            before = epoch(life)
            running.append(life.spark(log))
            until(lambda b=before: epoch(life) > b, "the start of the archive")
            time.sleep(dice.uniform(0, 6))  # a random moment
            # Every third kill is of the Python driver only: its JVM and workers must detect that and end.
            (running[-1].kill_alone if number % 3 == 2 else running[-1].kill)()
            print(f"kill {number + 1}/{rounds}: {len(publisher.acknowledged)} events so far")  # noqa: T201
        publisher.stop()
        # The clock of this run is ahead, so that all hours have ended.
        last = life.spark(log, "--once", ahead_ms=4 * HOUR_MS, speed=1.0)
        running.append(last)
        assert last.wait() == 0, last.log_tail()
    finally:
        publisher.stop()
        for process in running:
            process.kill()
    check(life, publisher, log)
    life.platform.close()
    print(  # noqa: T201
        f"seed {seed}: {rounds} kills, {len(publisher.acknowledged)} events, {time.monotonic() - began:.0f} s"
    )


def check(life: Life, publisher: Publisher, log: Path) -> None:
    records = life.records()
    assert publisher.acknowledged.keys() <= {event["id"] for event in records.values()}
    found, where = life.archived()
    assert set(found.values()) == {1}, "a record is published twice"
    assert found.keys() == records.keys(), log.read_text()[-3000:]
    standing = life.platform.archive.ledger.standing(NAME)
    assert standing is not None
    assert (standing.counts.balanced, standing.counts.read, standing.counts.skipped) == (True, len(records), 0)
    assert standing.counts.quarantined == sum(hour is None for hour, _ in publisher.acknowledged.values())
    hours = {hour for hour, _ in publisher.acknowledged.values() if hour is not None and hour >= START_MS}
    assert hours <= verified(life.data)
    places = {event["id"]: place for place, event in records.items()}
    for event_id, (hour_ms, acknowledged_ms) in publisher.acknowledged.items():
        if hour_ms is not None and hour_ms >= START_MS and acknowledged_ms < hour_ms + HOUR_MS + GRACE_MS:
            path = where[places[event_id]]
            assert not path.name.startswith("late-"), f"{path} was flagged before it was complete"


def verified(data: Path) -> set[int]:
    """The flagged hours, after verifying all of them."""
    done = run_cli("archive", "verify", "--data", str(data), "--json")
    checks = json.loads(done.stdout)
    assert (done.returncode, [one for one in checks if one["problems"]]) == (0, [])
    return {parse_hour(one["hour"]) for one in checks}
