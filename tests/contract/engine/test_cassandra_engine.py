"""The Cassandra engine: addresses, batches that Cassandra accepts, and clear errors."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from services import free_port, until
from services.cassandra import CassandraServer
from strandline.engine.cassandra import NULL, UNSET, CassandraSession, Write, encoded
from strandline.errors import Invalid, StrandlineError, Unavailable

ADD = "INSERT INTO notes (shelf, number, note) VALUES (?, ?, ?) USING TIMESTAMP ?"
COUNT = "SELECT count(*) FROM notes WHERE shelf = ?"


@pytest.fixture(scope="module")
def keyspace(cassandra: CassandraServer) -> str:
    name = cassandra.new_keyspace()
    cassandra.execute(
        f"CREATE TABLE {name}.notes (shelf bigint, number bigint, note text, PRIMARY KEY (shelf, number))"
    )
    columns = ", ".join(f"c{number} boolean" for number in range(40))
    cassandra.execute(f"CREATE TABLE {name}.flags (id bigint PRIMARY KEY, {columns})")
    return name


@pytest.fixture
def session(cassandra: CassandraServer, keyspace: str) -> Iterator[CassandraSession]:
    opened = CassandraSession(cassandra.url(keyspace))
    yield opened
    opened.close()


def add(shelf: int, number: int, note: bytes, at: int = 1) -> Write:
    return Write(ADD, [struct.pack(">q", shelf), struct.pack(">q", number), note, struct.pack(">q", at)])


def test_writes_of_any_size_and_number_are_carried_out(session: CassandraSession) -> None:
    """Together they are far more than Cassandra accepts in a batch, and the last one alone is."""
    writes = [add(number % 7, number, b"x" * 100) for number in range(5_000)]
    session.write([*writes, add(100, 1, b"y" * 200_000)])
    counts = session.fetch_each(COUNT, [(shelf,) for shelf in (*range(7), 100)])
    assert sum(count for ((count,),) in counts) == 5_001


def test_batches_are_small_and_have_rows_of_the_same_replicas(
    session: CassandraSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here shelves with even numbers are on one node, the others on another."""
    monkeypatch.setattr(session, "_replicas", lambda key: key[-1] % 2)
    batches = [*session._batches([add(number % 9, number, b"x" * 1_000) for number in range(500)])]
    assert sum(len(batch.rows) for batch in batches) == 500
    assert max(batch.size for batch in batches) <= 40 << 10
    assert len(batches) < 25
    shelf = slice(25, 33)  # after the statement, the number of values and the length of this one
    for batch in batches:
        assert len({row[shelf][-1] % 2 for row in batch.rows}) == 1


def test_everything_needs_a_quorum_of_the_data_center(cassandra: CassandraServer) -> None:
    """Two replicas on one node: none of the requests can be carried out."""
    name = cassandra.new_keyspace(replicas=2)
    cassandra.execute(
        f"CREATE TABLE {name}.notes (shelf bigint, number bigint, note text, PRIMARY KEY (shelf, number))"
    )
    opened = CassandraSession(cassandra.url(name))
    for call in (lambda: opened.fetch(COUNT, 1), lambda: opened.write([add(1, 1, b"x")])):
        with pytest.raises(Unavailable, match="LOCAL_QUORUM"):
            call()
    opened.close()


def test_many_small_values_fit_into_a_batch(session: CassandraSession) -> None:
    """Cassandra counts more bytes for a value than are sent. It refuses batches of more than 50 KiB."""
    columns = [f"c{number}" for number in range(40)]
    marks = ", ".join("?" * 41)
    add_flags = f"INSERT INTO flags (id, {', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - not from outside
    session.write([Write(add_flags, [struct.pack(">q", number), *[b"\x01"] * 40]) for number in range(1_000)])
    assert session.fetch("SELECT count(*) FROM flags") == [(1_000,)]


def test_values_may_be_encoded_before_and_shared_by_the_rows_of_a_partition(session: CassandraSession) -> None:
    shelf = [struct.pack(">q", 500)]
    one, two, three = (encoded(struct.pack(">q", number)) for number in (1, 2, 3))
    at, later = (encoded(struct.pack(">q", number)) for number in (1, 2))
    session.write([Write(ADD, shelf, number + encoded(b"x") + at) for number in (one, two, three)])
    session.write([Write(ADD, shelf, two + NULL + later), Write(ADD, shelf, three + UNSET + later)])
    found = session.fetch("SELECT number, note FROM notes WHERE shelf = ?", 500)
    assert found == [(1, "x"), (2, None), (3, "x")]


def test_of_two_writes_the_one_with_the_greater_timestamp_counts(session: CassandraSession) -> None:
    session.write([add(200, 1, b"new", at=9)])
    session.write([add(200, 1, b"old", at=8)])
    assert session.fetch("SELECT note FROM notes WHERE shelf = ?", 200) == [("new",)]


def test_a_long_answer_comes_in_pages(session: CassandraSession) -> None:
    session.write([add(300, number, b"x") for number in range(25)])
    pages = session.pages("SELECT number FROM notes WHERE shelf = ?", 300, size=10)
    assert [[number for (number,) in page] for page in pages] == [
        [*range(10)],
        [*range(10, 20)],
        [*range(20, 25)],
    ]


def test_without_a_server_calls_are_unavailable_and_recover_with_it(
    cassandra: CassandraServer, session: CassandraSession
) -> None:
    cassandra.kill()
    with pytest.raises(Unavailable, match="Cassandra at 127"):
        session.write([add(400, 1, b"x")])
    with pytest.raises(Unavailable):
        session.fetch(COUNT, 400)
    cassandra.bring_back()
    until(lambda: _wrote(session), "a write after the restart")
    assert session.fetch(COUNT, 400) == [(1,)]


def _wrote(session: CassandraSession) -> bool:
    try:
        session.write([add(400, 1, b"x")])
    except StrandlineError:
        return False
    return True


def test_a_closed_session_is_unavailable(cassandra: CassandraServer, keyspace: str) -> None:
    session = CassandraSession(cassandra.url(keyspace))
    session.close()
    with pytest.raises(Unavailable, match="closed"):
        session.fetch(COUNT, 1)


def test_a_missing_keyspace_is_named_with_the_statement_that_creates_it(cassandra: CassandraServer) -> None:
    with pytest.raises(Unavailable, match="CREATE KEYSPACE nowhere WITH replication"):
        CassandraSession(cassandra.url("nowhere"))


def test_an_address_where_nothing_listens_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="Cassandra at 127"):
        CassandraSession(f"cassandra://127.0.0.1:{free_port()}/journals")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://host/journals",
        "cassandra://host:9042",
        "cassandra://host:9042/",
        "cassandra://host:x/journals",
        "cassandra:///journals",
        "cassandra://host/journals?color=red",
        "cassandra://host/Journals",
        "cassandra://host/journals;drop",
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="cassandra://"):
        CassandraSession(url)


def test_a_password_is_given_by_reference_and_never_shown() -> None:
    with pytest.raises(Invalid, match="by reference") as refused:
        CassandraSession("cassandra://ann:hush-4711@host:9042/journals")
    assert "hush" not in str(refused.value)
    with pytest.raises(Invalid, match="NO_SUCH_VARIABLE"):
        CassandraSession("cassandra://ann:env:NO_SUCH_VARIABLE@host:9042/journals")
