"""Every contract test of the ledger runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_place import LedgerPlace

from strandline.archive.ledger import Ledger


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LedgerPlace]:
    if request.param == "sqlite":
        made = LedgerPlace(f"sqlite:{tmp_path / 'archive.db'}")
    else:
        server = request.getfixturevalue("postgres")
        made = LedgerPlace(server.url(server.new_database()))
    yield made
    made.close()


@pytest.fixture
def ledger(place: LedgerPlace) -> Ledger:
    return place.open()
