"""Appends during a switch, on a storage that seals and on one that cannot.

Two platforms share one data directory. The first is paused: its append is delayed, its membership expires, the
second switches, and then the append continues.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import strandline
from services import DEADLINE_S, until
from strandline import EventType
from strandline.errors import NotFound, Unavailable
from strandline.log.model import StorageInfo
from strandline.log.records import NewRecords
from strandline.log.storage import Placed, SealableStorage, Storage
from strandline.log.storage.registry import SqliteConfiguration

OTHER = StorageInfo("other", "sqlite", sqlite_configuration=SqliteConfiguration("other"))


class Unsealable(Storage):
    """A storage without `seal`, like Kafka."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        for verb in (
            "create_topic",
            "delete_topic",
            "make_ready",
            "read",
            "bounds_of",
            "find",
            "watch",
            "purge",
            "grow",
            "close",
        ):
            setattr(self, verb, getattr(storage, verb))

    def append(
        self, topic: str, batches: Mapping[int, NewRecords], *, waits: bool = False
    ) -> Future[dict[int, Placed]]:
        return self._storage.append(topic, batches, waits=waits)


Unsealable.__abstractmethods__ = frozenset()


@pytest.fixture(params=["seals", "cannot seal"])
def opened(request, tmp_path) -> Iterator[Callable[[], strandline.platform.Platform]]:
    """A function that opens another platform on the same directory."""
    platforms = []

    def one_more():
        platform = strandline.open(tmp_path)
        if request.param == "cannot seal":
            storages = platform.log._storages
            connect = storages._connect
            storages._connect = lambda storage_id: Unsealable(connect(storage_id))
        platforms.append(platform)
        return platform

    first = one_more()
    first.log.create(EventType("orders"))
    first.log.admin.add_storage(OTHER)
    yield one_more
    for platform in platforms:
        platform.close()


def numbers(platform) -> list[int]:
    return [event["n"] for batch in platform.log.read("orders") for event in batch.events]


def test_publishing_goes_on_after_a_switch(opened):
    """Every event is read once after several switches."""
    platform = opened()
    for round_ in range(4):
        platform.log.publish("orders", [{"n": 2 * round_}]).raise_for_failed()
        platform.log.publish("orders", [{"n": 2 * round_ + 1}, *[]]).raise_for_failed()
        platform.log.admin.switch("orders", "other" if round_ % 2 == 0 else "default")
    assert numbers(platform) == list(range(8))


def hold_appends(platform) -> threading.Event:
    """Delay the platform's appends to the old storage until the event is set."""
    storage = platform.log._storages.get("default")
    go = threading.Event()

    def late(append):
        def wait(topic, batches, **options):
            assert go.wait(20)
            return append(topic, batches, **options)

        return wait

    storage.append, storage.try_append = late(storage.append), late(storage.try_append)
    return go


def test_an_append_that_comes_too_late_moves_to_the_new_timeline(opened):
    """A late append is never acknowledged and lost, and never read twice."""
    sleeper, awake = opened(), opened()
    sleeper.log.publish("orders", [{"n": 0}]).raise_for_failed()
    awake.log.publish("orders", [{"n": 1}]).raise_for_failed()
    go = hold_appends(sleeper)
    reports = []
    publishing = threading.Thread(
        target=lambda: reports.append(sleeper.log.publish("orders", [{"n": 2}])), daemon=True
    )
    publishing.start()
    until(lambda: sleeper.log.node.gate("orders")._running == 1, "the publish under way")
    sleeper.log.node.coordination.close()  # ends its session for the other nodes
    awake.log.admin.switch("orders", "other")
    go.set()
    publishing.join(20)
    assert reports[0].ok
    awake.log.publish("orders", [{"n": 3}]).raise_for_failed()
    assert numbers(awake) == [0, 1, 2, 3]
    old, new = awake.log.timelines("orders")
    assert old.latest_position == {"0": 1}
    assert awake.log._storages.get("other").bounds(new.topic)[0].last == 1


@pytest.mark.parametrize(
    ("opened", "published"), [("seals", False), ("cannot seal", False), ("cannot seal", True)], indirect=["opened"]
)
def test_an_append_never_moves_to_another_event_type(opened, published):
    """After the event type was deleted and created again, a late append is neither moved nor acknowledged."""
    sleeper, awake = opened(), opened()
    if published:  # then the append still finds the file of the deleted topic
        sleeper.log.publish("orders", [{"n": -1}]).raise_for_failed()
    go = hold_appends(sleeper)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(sleeper.log.publish, "orders", [{"n": 0}])
        until(lambda: sleeper.log.node.gate("orders")._running == 1, "the running publish")
        awake.log.delete("orders")
        awake.log.create(EventType("orders"))
        go.set()
        assert isinstance(late.exception(DEADLINE_S), NotFound)
    awake.log.publish("orders", [{"n": 1}]).raise_for_failed()
    assert numbers(awake) == [1]


def test_what_the_storage_took_is_never_called_failed(opened, monkeypatch):
    """Without a seal, the outcome of a stored append is unknown while the catalog does not answer."""
    platform = opened()
    platform.log.publish("orders", [{"n": 0}]).raise_for_failed()
    storage = platform.log._storages.get("default")
    version = platform.log._catalog.version

    def away() -> int:
        raise Unavailable("the catalog does not answer")

    def then_away(append):
        def store(topic, batches, **options):
            placed = append(topic, batches, **options)
            if placed is not None:
                monkeypatch.setattr(platform.log._catalog, "version", away)
            return placed

        return store

    storage.append, storage.try_append = then_away(storage.append), then_away(storage.try_append)
    report = platform.log.publish("orders", [{"n": 1}])
    if isinstance(storage, SealableStorage):
        assert report.ok  # a sealed storage would have refused a late append
    else:
        assert [(item.publishing_status, item.detail) for item in report.items] == [("failed", "outcome_unknown")]
    monkeypatch.setattr(platform.log._catalog, "version", version)
    assert numbers(platform) == [0, 1]


def test_threads_publish_single_events_through_switches(opened):
    """The events of each thread are stored once and in order, whether they were published alone or in groups."""
    platform = opened()
    stop = threading.Event()
    sent: dict[int, int] = {}

    def work(thread: int) -> None:
        number = 0
        while not stop.is_set():
            platform.log.publish("orders", [{"thread": thread, "n": number}]).raise_for_failed()
            number += 1
            sent[thread] = number

    threads = [threading.Thread(target=work, args=(thread,), daemon=True) for thread in range(4)]
    for thread in threads:
        thread.start()
    for round_ in range(6):
        before = sum(sent.values())
        until(lambda before=before: sum(sent.values()) > before + 4, "publishes between two switches")
        platform.log.admin.switch("orders", "other" if round_ % 2 == 0 else "default")
    stop.set()
    for thread in threads:
        thread.join(20)
    events = [event for batch in platform.log.read("orders") for event in batch.events]
    for thread in range(4):
        assert [event["n"] for event in events if event["thread"] == thread] == [*range(sent[thread])]


def test_an_interrupted_publish_holds_up_nobody(opened):
    """After Ctrl-C in the middle of a publish, later publishes and switches work."""
    platform = opened()
    platform.log.publish("orders", [{"n": 0}]).raise_for_failed()
    gate = platform.log.node.gate("orders")
    go = hold_appends(platform)
    interrupting = threading.Thread(
        target=lambda: (until(lambda: gate._running == 1, "the publish in progress"), _thread.interrupt_main())
    )
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        platform.log.publish("orders", [{"n": 1}])
    interrupting.join(20)
    go.set()
    platform.log.publish("orders", [{"n": 2}]).raise_for_failed()
    platform.log.admin.switch("orders", "other")
    platform.log.publish("orders", [{"n": 3}]).raise_for_failed()
    assert numbers(platform) == [0, 2, 3]
