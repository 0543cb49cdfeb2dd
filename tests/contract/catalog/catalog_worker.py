"""A second process that uses a PostgreSQL catalog: `catalog_worker.py <url>`.

A test calls the functions below through `peers`, with an event type's name and a switch's token.
"""

from __future__ import annotations

import sys

from catalog_place import effect, switch_of

from peers import serve
from strandline.engine.postgres import PostgresDatabase
from strandline.log.catalog import Catalog
from strandline.log.catalog.sql import SqlCatalog


def begin(catalog: Catalog, name: str, token: str) -> bool:
    entry = catalog.get(name)
    assert entry is not None
    catalog.switches.begin(entry, switch_of(entry, token))
    return True


def commit(catalog: Catalog, name: str, token: str) -> bool:
    entry = catalog.get(name)
    assert entry is not None
    return catalog.switches.commit(token, effect(entry, switch_of(entry, token)))


def close(catalog: Catalog, _name: str, token: str) -> bool:
    return catalog.switches.close(token)


def abort(catalog: Catalog, _name: str, token: str) -> bool:
    return catalog.switches.abort(token)


if __name__ == "__main__":
    serve(SqlCatalog(PostgresDatabase(sys.argv[1])), begin, commit, close, abort)
