"""Subscriptions whose cursors are past the end of the log, because the log was restored from an old copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import strandline
from strandline import EventType
from strandline.log import Log


def publish(log: Log, *numbers: int) -> None:
    log.publish("orders", [{"n": n} for n in numbers]).raise_for_failed()


def receive(log: Log, count: int) -> list[int]:
    """Read and commit that many events."""
    found: list[int] = []
    with log.subscribe(["orders"], group="g", read_from="begin") as consumer:
        while len(found) < count:
            batch = consumer.receive(10)
            assert batch is not None, f"received only {found}"
            found += [event["n"] for event in batch.events]
            consumer.commit(batch)
    return found


def test_reading_continues_at_the_end_and_this_is_reported_once(tmp_path: Path, caplog):
    """The stream does not fail repeatedly; the next event is delivered."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    with strandline.open(data) as platform:
        platform.log.create(EventType("orders", partitions=1))
        publish(platform.log, 0)
    shutil.copytree(data / "topics", copy)
    with strandline.open(data) as platform:
        publish(platform.log, 1, 2)
        assert receive(platform.log, 3) == [0, 1, 2]
    shutil.rmtree(data / "topics")
    shutil.copytree(copy, data / "topics")

    with strandline.open(data) as platform:
        (subscription,) = platform.log.subscriptions.search()
        (stats,) = platform.log.subscriptions.stats(str(subscription.id), show_time_lag=True)
        assert [(part.unconsumed_events, part.skipped_events) for part in stats.partitions] == [(0, 0)]
        with platform.log.subscriptions.consume(str(subscription.id)) as consumer:
            assert consumer.receive(0.1) is None
        publish(platform.log, 3)
        assert receive(platform.log, 1) == [3]
        (cursor,) = platform.log.subscriptions.cursors(str(subscription.id))
        assert cursor.offset == "001-0001-000000000000000001"
    (report,) = [line for line in caplog.messages if "the subscription skips 0 events" in line]
    assert "001-0001-000000000000000002 is not available: the newest offset is 0" in report
