"""A node whose journals are in Cassandra: written over HTTP, replicated by the job, and read again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from services import CLIENT, DEADLINE_S, Server, environment, free_port, run_cli
from services.cassandra import CassandraServer

# Other tests share the keyspace.
ONE, TWO = "one of a node", "two of a node"
JOB = ("pipeline", "run", "replicate", "--once", "--json", "--master", "local[1]")


def serve(data: Path, url: str) -> Server:
    return Server(data, journal_url=url, logs_level="warning")


def events(node: Server, entity: str) -> httpx.Response:
    return CLIENT.get(f"{node.url}/journals/orders/{entity}/events")


def append(node: Server, entity: str, *numbers: int) -> httpx.Response:
    body = {"events": [{"seq_nr": number, "payload": {"n": number}} for number in numbers]}
    return CLIENT.post(f"{node.url}/journals/orders/{entity}/events", json=body)


def seq_nrs(answer: httpx.Response) -> list[int]:
    assert answer.status_code == httpx.codes.OK, answer.text
    return [json.loads(line)["seq_nr"] for line in answer.text.splitlines()]


def test_journals_are_replicated_to_cassandra_and_read_from_there(
    tmp_path: Path, cassandra: CassandraServer, journal_keyspace: str
) -> None:
    data = tmp_path / "data"
    with serve(data, journal_keyspace) as node:
        assert CLIENT.put(f"{node.url}/journals/orders", json={"partitions": 2}).is_success
        for entity in (ONE, TWO):
            assert append(node, entity, 1, 2, 3).status_code == httpx.codes.CREATED
        assert CLIENT.delete(f"{node.url}/journals/orders/{TWO}/events?to=2").is_success
        done = run_cli(*JOB, "--data", str(data), "--journal-url", journal_keyspace)
        assert done.returncode == 0, done.stderr.decode()
        assert sum(json.loads(done.stdout.splitlines()[-1])["lag"].values()) == 0
        assert append(node, ONE, 4).status_code == httpx.codes.CREATED  # this one is in the log only
        assert seq_nrs(events(node, ONE)) == [1, 2, 3, 4]
        assert seq_nrs(events(node, TWO)) == [3]
        assert CLIENT.get(f"{node.url}/ready").status_code == httpx.codes.OK
        keyspace = journal_keyspace.rpartition("/")[2]
        stored = cassandra.execute(f"SELECT id, seq_nr FROM {keyspace}.journal")  # noqa: S608 - not from outside
        assert {*stored} >= {(ONE, 1), (ONE, 2), (ONE, 3), (TWO, 3)}
        assert (ONE, 4) not in stored


@pytest.fixture
def nowhere(tmp_path: Path) -> Iterator[tuple[Server, str]]:
    """A node, and the address of its journals, at which nothing listens."""
    url = f"cassandra://127.0.0.1:{free_port()}/journals"
    with serve(tmp_path / "data", url) as node:
        assert CLIENT.put(f"{node.url}/journals/orders", json={}).is_success
        yield node, url


def test_while_cassandra_is_away_the_node_says_so(nowhere: tuple[Server, str]) -> None:
    node, url = nowhere
    where = url.removeprefix("cassandra://").removesuffix("/journals")
    for answer in (CLIENT.get(f"{node.url}/ready"), events(node, ONE), append(node, ONE, 1)):
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert f"Cassandra at {where} does not answer" in answer.json()["detail"]
    assert CLIENT.get(f"{node.url}/event-types").status_code == httpx.codes.OK
    done = run_cli(*JOB, "--data", str(node.folder / node.name), "--journal-url", url)
    assert done.returncode == 3  # unavailable
    assert f"Cassandra at {where} does not answer" in done.stderr.decode()


_WITHOUT_DRIVER = """
import sys
sys.modules["cassandra"] = None  # as if it were not installed
from strandline.cli import main
sys.exit(main())
"""


def test_a_missing_driver_is_named_with_the_way_to_install_it(tmp_path: Path) -> None:
    made = run_cli("journal", "create", "orders", "--data", str(tmp_path))
    assert made.returncode == 0, made.stderr.decode()
    command = [
        sys.executable,
        "-c",
        _WITHOUT_DRIVER,
        "journal",
        "pointer",
        "orders",
        "one",
        "--data",
        str(tmp_path),
    ]
    env = environment(STRANDLINE_JOURNAL__URL="cassandra://127.0.0.1/journals")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S, env=env)
    assert done.returncode == 3  # unavailable
    assert "the Cassandra driver is not installed; run pip install 'strandline[cassandra]'" in done.stderr
