"""Another process at a PostgreSQL catalog.

It reads `begin|close|abort|commit <event type> <token>`, a line each, and writes the answers, a line each.
"""

from __future__ import annotations

import sys

from catalog_place import effect, switch_of

from strandline.engine.postgres import PostgresDatabase
from strandline.errors import StrandlineError
from strandline.log.catalog import Catalog
from strandline.log.catalog.sql import SqlCatalog


def answer(catalog: Catalog, act: str, name: str, token: str) -> object:
    entry = catalog.get(name)
    assert entry is not None
    switch = switch_of(entry, token)
    if act == "begin":
        catalog.switches.begin(entry, switch, 1_000)
        return True
    if act == "commit":
        return catalog.switches.commit(token, effect(entry, switch))
    return getattr(catalog.switches, act)(token)


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def main(url: str) -> None:
    catalog = SqlCatalog(PostgresDatabase(url))
    say("ready")
    for line in sys.stdin:
        try:
            say(answer(catalog, *line.split()))
        except StrandlineError as error:
            say(type(error).__name__)


main(*sys.argv[1:])
