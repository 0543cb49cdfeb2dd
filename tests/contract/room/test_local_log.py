"""The log room of this process works without the other rooms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from strandline import EventType
from strandline.clock import ManualClock
from strandline.engine.connect import Databases
from strandline.errors import Conflict, NotFound
from strandline.log.local import LocalLog
from strandline.log.model import StorageInfo
from strandline.log.open import open_log
from strandline.log.storage.registry import SqliteConfiguration
from strandline.log.subscriptions import Subscription
from strandline.settings import Settings

DAY_MS = 86_400_000


@pytest.fixture
def databases(tmp_path: Path) -> Iterator[Databases]:
    with closing(Databases(tmp_path)) as opened:
        yield opened


def test_the_log_room_alone_is_complete(tmp_path: Path, databases: Databases):
    """The log room alone supports everything from creating an event type to deleting it, with subscriptions."""
    log = open_log(tmp_path, databases, Settings(), ManualClock())
    try:
        log.create(EventType("orders"))
        log.publish("orders", [{"n": 1}]).raise_for_failed()
        subscription, _ = log.subscriptions.create(Subscription("app", ("orders",), read_from="begin"))
        with pytest.raises(Conflict, match="has subscriptions"):
            log.delete("orders")
        log.subscriptions.delete(str(subscription.id))
        assert log.upkeep.run() == []
        log.delete("orders")
        with pytest.raises(NotFound):
            log.get("orders")
    finally:
        log.close()


def test_what_a_log_measures(tmp_path: Path, databases: Databases):
    """Lags of subscriptions across timelines, sizes of topics, commits and switches; a removed topic goes, too."""
    log = open_log(tmp_path, databases, Settings(), ManualClock())
    try:
        log.create(EventType("orders", partitions=2))
        log.publish("orders", [{"n": n} for n in range(10)]).raise_for_failed()
        subscription, _ = log.subscriptions.create(Subscription("app", ("orders",), read_from="begin"))
        log.admin.add_storage(StorageInfo("second", "sqlite", sqlite_configuration=SqliteConfiguration("second")))
        log.admin.switch("orders", "second")
        log.publish("orders", [{"n": n} for n in range(5)]).raise_for_failed()
        with log.subscriptions.consume(str(subscription.id)) as consumer:
            measure = next(chore.run for chore in log.chores() if chore.name == "measuring the log")
            measure()
            assert gauge(log, "strandline_subscription_lag") == {subscription.id: 15}
            batch = consumer.receive(60)
            consumer.commit(batch)
        measure()
        assert gauge(log, "strandline_subscription_lag") == {subscription.id: 15 - len(batch)}
        sizes = gauge(log, "strandline_topic_bytes")
        assert sizes.keys() == {timeline.topic for timeline in log.timelines("orders")}
        assert min(sizes.values()) > 4096
        (commits,) = log.histograms().values()
        assert {storage: times.read()[0][-1] for storage, times in commits.items()} == {"default": 1, "second": 1}
        ended = {metric.name: values for metric, values in log.counts().items()}["strandline_switches"]
        assert ended == {"done": 1}
        log.subscriptions.delete(str(subscription.id))
        log.delete("orders")
        measure()
        assert not any(gauge(log, name) for name in ("strandline_subscription_lag", "strandline_topic_bytes"))
    finally:
        log.close()


def gauge(log: LocalLog, name: str) -> Mapping[str, float]:
    return next(values for metric, values in log.gauges().items() if metric.name == name)


def test_event_types_are_compiled_once_per_change(tmp_path: Path, databases: Databases):
    """A change of one event type does not compile the others again."""
    log = open_log(tmp_path, databases, Settings(), ManualClock())
    try:
        created = [log.create(EventType(name)) for name in ("orders", "visits")]
        before = [log.types.compiled(kind.name) for kind in created]
        log.update(EventType("orders", owning_application="shop"))
        after = [log.types.compiled(kind.name) for kind in created]
        assert after[0].entry.event_type.owning_application == "shop"
        assert (after[0] is before[0], after[1] is before[1]) == (False, True)
    finally:
        log.close()


def test_the_storages_of_event_types_are_known_after_a_lookup(tmp_path: Path, databases: Databases):
    """All storages with timelines, or only those that new events go to; a removed timeline does not count."""
    clock = ManualClock()
    log = open_log(tmp_path, databases, Settings(), clock)
    try:
        log.admin.add_storage(StorageInfo("second", "sqlite", sqlite_configuration=SqliteConfiguration("second")))
        for name in ("orders", "visits"):
            log.create(EventType(name))
        assert log.known_storages(["orders", "visits"]) is None
        assert log.find_storages(["orders", "visits", "nobody"]) == {"default"}
        assert log.known_storages(["orders", "visits"]) == {"default"}
        assert log.known_storages(["orders", "nobody"]) is None
        log.admin.switch("orders", "second")
        assert log.known_storages(["orders"]) == {"default", "second"}
        assert log.known_storages(["orders"], active=True) == {"second"}
        assert log.find_storages(["orders", "visits"], active=True) == {"default", "second"}
        clock.advance(10 * DAY_MS)
        assert [removed.timeline.order for removed in log.upkeep.remove_timelines()] == [1]
        assert log.find_storages(["orders"]) == {"second"}
    finally:
        log.close()
