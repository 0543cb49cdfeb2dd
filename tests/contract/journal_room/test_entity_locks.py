"""The locks of journals on adopted topics, shared by all nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from services import until
from strandline.engine.connect import Databases
from strandline.errors import OutcomeUnknown, StrandlineError, Unavailable
from strandline.journal.entity_locks import EntityLocks

_LONG_MS = 60_000


@pytest.fixture(params=["sqlite", "postgres"])
def node(request: pytest.FixtureRequest, tmp_path, monkeypatch) -> Iterator[Callable[[int], EntityLocks]]:
    """The locks as another node has them, with the time that a write may take."""
    monkeypatch.setattr("strandline.journal.entity_locks._PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr("strandline.journal.entity_locks._MARGIN_MS", 0)
    url = ""
    if request.param == "postgres":
        postgres = request.getfixturevalue("postgres")
        url = postgres.url(postgres.new_database())
    with ExitStack() as opened:

        def another(write_ms: int = _LONG_MS) -> EntityLocks:
            databases = Databases(tmp_path)
            opened.callback(databases.close)
            return EntityLocks(databases, url, write_ms)

        yield another


def is_free(locks: EntityLocks, entity: str = "a") -> bool:
    try:
        with locks.held("t", entity):
            return True
    except Unavailable:
        return False


def test_one_writer_has_the_lock_of_an_entity(node):
    one, other = node(), node()
    with one.held("t", "a"):
        assert not is_free(other)
        assert not is_free(one)
        assert is_free(other, "b\0")
        with other.held("t2", "a"):
            pass
    assert is_free(other)


def test_an_error_releases_the_lock(node):
    one, other = node(), node()
    with pytest.raises(StrandlineError), one.held("t", "a"):
        raise StrandlineError("refused")
    assert is_free(other)


def test_while_an_outcome_is_unknown_the_lock_is_kept(node):
    """What was sent may be written later."""
    one, other = node(), node()
    with pytest.raises(OutcomeUnknown), one.held("t", "a"):
        raise OutcomeUnknown("no answer")
    assert not is_free(other)


def test_the_lock_of_a_node_that_was_killed_expires(node):
    killed, other = node(500), node()
    with pytest.raises(OutcomeUnknown), killed.held("t", "a"):
        raise OutcomeUnknown("it ends like this")
    until(lambda: is_free(other), "the lock")
