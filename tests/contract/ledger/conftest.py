"""Every contract test of the ledger runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ledger_place import LedgerPlace

from strandline.archive.ledger import Ledger


@pytest.fixture
def place(database_url: str) -> Iterator[LedgerPlace]:
    made = LedgerPlace(database_url)
    yield made
    made.close()


@pytest.fixture
def ledger(place: LedgerPlace) -> Ledger:
    return place.open()
