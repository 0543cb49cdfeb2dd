"""Whoever fills a port can be called the way the port says, arguments by name included."""

from __future__ import annotations

import inspect

import pytest

import strandline.archive.files.hdfs
import strandline.archive.files.s3
import strandline.archive.ledger.postgres
import strandline.archive.ledger.sqlite
import strandline.archive.local
import strandline.client
import strandline.log.local
from strandline.archive.files import Files
from strandline.archive.ledger import HourBook, Leases, Ledger, PeriodBook
from strandline.archive.room import Archive
from strandline.log.catalog import Catalog
from strandline.log.catalog.postgres import PostgresCatalog
from strandline.log.catalog.sqlite import SqliteCatalog
from strandline.log.room import Log
from strandline.log.storage import Storage
from strandline.log.storage.sqlite import SqliteStorage
from strandline.log.subscriptions import Consumer, Subscriptions
from strandline.log.subscriptions.port import StreamLeases, SubscriptionStore

assert strandline.archive.ledger.postgres
assert strandline.archive.ledger.sqlite
assert strandline.archive.local
assert strandline.archive.files.hdfs
assert strandline.archive.files.s3
assert strandline.client
assert strandline.log.local


def implementations(port: type) -> list[type]:
    found = [port]
    for kind in found:
        found.extend(kind.__subclasses__())
    return [kind for kind in found[1:] if kind.__module__.startswith("strandline.")]


PORTS = (
    *(Log, Storage, Catalog, Subscriptions, Consumer, SubscriptionStore, StreamLeases, Files),
    *(Archive, Ledger, HourBook, PeriodBook, Leases),
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
    """Same names, same order, same defaults."""

    def shape(owner: type) -> list[tuple[object, ...]]:
        parameters = inspect.signature(getattr(owner, name)).parameters.values()
        return [(p.name, p.kind, p.default) for p in parameters]

    assert shape(kind) == shape(port)


def test_every_port_has_its_adapter():
    """The list above is not empty by accident."""
    known = {SqliteStorage, SqliteCatalog, PostgresCatalog, strandline.log.local.LocalLog}
    assert known <= {case.values[0] for case in CASES}
