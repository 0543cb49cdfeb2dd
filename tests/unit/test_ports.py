"""Every implementation of a port can be called as the port declares, including arguments by name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import strandline
from strandline.archive.files import Files
from strandline.archive.ledger import HourBook, Leases, Ledger, PeriodBook
from strandline.archive.room import Archive
from strandline.feeds.room import Feeds
from strandline.feeds.storage import FeedStore
from strandline.journal.room import Journal, Journals
from strandline.journal.storage import JournalStore, StoredJournal
from strandline.log.catalog import Catalog
from strandline.log.catalog.sql import SqlCatalog
from strandline.log.room import Log
from strandline.log.serving import ServedLog, ServedSubscriptions
from strandline.log.storage import Storage
from strandline.log.storage.sqlite import SqliteStorage
from strandline.log.subscriptions import Consumer, Subscriptions
from strandline.log.subscriptions.port import StreamLeases, SubscriptionStore
from strandline.room import Room
from strandline.schedule.room import ScheduleMessages, Schedules
from strandline.schedule.storage import DueMessages, Messages, ScheduleStore, Sessions

# Only imported classes are found, so all modules are imported here.
for _module in pkgutil.walk_packages(strandline.__path__, "strandline."):
    if not _module.name.endswith("__main__"):
        importlib.import_module(_module.name)


def implementations(port: type) -> list[type]:
    found = [port]
    for kind in found:
        found.extend(kind.__subclasses__())
    return [kind for kind in found[1:] if kind.__module__.startswith("strandline.")]


PORTS = (
    *(Log, Storage, Catalog, Subscriptions, Consumer, SubscriptionStore, StreamLeases, Files),
    *(Archive, Ledger, HourBook, PeriodBook, Leases, Room, ServedLog, ServedSubscriptions),
    *(Schedules, ScheduleMessages, ScheduleStore, Messages, DueMessages, Sessions),
    *(Journals, Journal, JournalStore, StoredJournal),
    *(Feeds, FeedStore),
)
CASES = [
    pytest.param(kind, port, name, id=f"{kind.__name__}.{name}")
    for port in PORTS
    for kind in implementations(port)
    for name, _ in inspect.getmembers(port, inspect.isfunction)
    if not name.startswith("_")
]


@pytest.mark.parametrize(("kind", "port", "name"), CASES)
def test_arguments_have_the_ports_names(kind, port, name):
    """Names, order and defaults of the arguments are the same."""

    def shape(owner: type) -> list[tuple[object, ...]]:
        parameters = inspect.signature(getattr(owner, name)).parameters.values()
        return [(p.name, p.kind, p.default) for p in parameters]

    assert shape(kind) == shape(port)


def test_every_port_has_its_adapter():
    """The list of cases is complete enough to contain the known adapters."""
    known = {SqliteStorage, SqlCatalog, strandline.log.local.LocalLog}
    assert known <= {case.values[0] for case in CASES}
