"""Subscriptions on nodes: shared by clients, with crashes, pauses and missing commits, without lost events."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from services import CLIENT, Server, until
from subscribers import (
    Ledger,
    Subscriber,
    commit,
    create_event_type,
    numbers,
    open_stream,
    publish,
    stats,
    streams,
    subscribe,
    vanish,
)

#: The session timeout of nodes that are killed or paused; a heartbeat may be two seconds late.
LEASE_MS = 3_000


@pytest.fixture(scope="module")
def nodes(tmp_path_factory) -> Iterator[tuple[Server, Server]]:
    """Two nodes on one data directory. They do not close streams of stalled clients."""
    data = tmp_path_factory.mktemp("subscriptions") / "data"
    flags = {"server_stalled_client_ms": 600_000, "logs_level": "warning"}
    with Server(data, **flags) as one, Server(data, **flags) as other:
        yield one, other


@pytest.fixture
def url(nodes) -> str:
    return nodes[0].url


@pytest.fixture
def name() -> str:
    return f"accept.{uuid.uuid4().hex}"


def take(batches: Iterator[dict], count: int) -> tuple[list[int], dict[str, dict]]:
    """The next `count` events, and the last cursor of every partition."""
    found: list[int] = []
    cursors: dict[str, dict] = {}
    for batch in batches:
        found += numbers(batch)
        cursors[batch["cursor"]["partition"]] = batch["cursor"]
        if len(found) >= count:
            break
    return found, cursors


def unconsumed(url: str, ident: str) -> int:
    return sum(partition["unconsumed_events"] for partition in stats(url, ident))


def test_clients_of_two_nodes_share_one_subscription(nodes, name):
    """Clients share the partitions equally, and every event is sent once, also while clients join and leave."""
    one, other = nodes
    create_event_type(one.url, name, 6)
    ident = subscribe(one.url, name)
    ledger = Ledger()
    clients = [Subscriber(node.url, ident, ledger) for node in (one, other, other)]
    for number, client in enumerate(clients):
        client.start()
        publish(nodes[number % 2].url, name, range(number * 100, number * 100 + 100))
        until(lambda n=number: len({*streams(one.url, ident)} - {""}) == n + 1, "a partition per client")
    until(lambda: sorted(Counter(streams(other.url, ident)).values()) == [2, 2, 2], "equal parts")
    publish(one.url, name, range(300, 600))
    until(lambda: len(ledger.committed) == 600, "600 committed events")
    clients[0].stop()
    until(lambda: sorted(Counter(streams(one.url, ident)).values()) == [3, 3], "the takeover by the other clients")
    publish(other.url, name, range(600, 700))
    until(lambda: len(ledger.committed) == 700, "700 committed events")
    for client in clients[1:]:
        client.stop()
    assert Counter(n for _, n in ledger.delivered) == Counter(range(700))
    assert [client.errors for client in clients] == [[], [], []]


def test_a_node_killed_in_the_middle_costs_nothing(tmp_path, name):
    """After `kill -9` of a node no event is lost, and no committed event is sent again."""
    flags = {"coordination_session_timeout_ms": LEASE_MS, "logs_level": "warning"}
    doomed, survivor = (Server(tmp_path / "data", **flags).start() for _ in range(2))
    ledger = Ledger()
    clients: list[Subscriber] = []
    try:
        create_event_type(survivor.url, name, 4)
        ident = subscribe(survivor.url, name)
        clients = [Subscriber(node.url, ident, ledger) for node in (doomed, doomed, survivor, survivor)]
        for client in clients:
            client.start()
        until(lambda: len({*streams(survivor.url, ident)} - {""}) == 4, "a partition per client")
        with ThreadPoolExecutor(1) as pool:
            first, rest = range(0, 1000, 20), range(1000, 2000, 20)
            load = pool.submit(lambda: [publish(survivor.url, name, range(n, n + 20)) for n in first])
            until(lambda: len(ledger.committed) > 300, "300 committed events")
            doomed.kill()
            for client in clients[:2]:
                client.stopping.set()
            load.result()
            for number in rest:
                publish(survivor.url, name, range(number, number + 20))
        # The response to a commit may be lost with the node, so check the cursors of the other node.
        until(lambda: unconsumed(survivor.url, ident) == 0, "all 2000 committed events")
        until(lambda: sorted(Counter(streams(survivor.url, ident)).values()) == [2, 2], "equal parts for two")
    finally:
        for client in clients:
            client.stop()
        doomed.kill()
        survivor.stop()
    assert {n for _, n in ledger.delivered} == {*range(2000)}
    assert ledger.repeated() == []
    assert [client.errors for client in clients] == [[]] * 4


def test_a_sleeping_node_loses_its_partitions_and_finds_back(tmp_path, name):
    """Partitions of a paused node move when its lease expires. Late commits never move a cursor back."""
    flags = {"coordination_session_timeout_ms": LEASE_MS, "logs_level": "warning"}
    with (
        Server(tmp_path / "data", **flags) as sleeper,
        Server(tmp_path / "data", **flags) as awake,
    ):
        create_event_type(awake.url, name, 2)
        ident = subscribe(awake.url, name)
        ledger = Ledger()
        clients = [Subscriber(sleeper.url, ident, ledger), Subscriber(awake.url, ident, ledger)]
        for client in clients:
            client.start()
        until(lambda: len({*streams(awake.url, ident)} - {""}) == 2, "a partition per client")
        sleeper.pause()
        try:
            publish(awake.url, name, range(100))
            until(lambda: len(ledger.committed) == 100, "the takeover by the other client")
        finally:
            sleeper.resume()
        until(lambda: len({*streams(awake.url, ident)} - {""}) == 2, "the return of the paused node")
        publish(awake.url, name, range(100, 200))
        until(lambda: len(ledger.committed) == 200, "all committed events")
        for client in clients:
            client.stop()
        assert unconsumed(awake.url, ident) == 0


def test_uncommitted_work_goes_to_another_client_after_the_commit_timeout(nodes, name):
    """Uncommitted events go to another client after the commit timeout. A late commit is refused."""
    one, other = nodes
    create_event_type(one.url, name, 1)
    ident = subscribe(one.url, name)
    publish(one.url, name, range(5))
    with open_stream(one.url, ident, batch_limit=5, commit_timeout=1) as (forgetful, batches):
        found, cursors = take(batches, 5)
        assert not any(numbers(batch) for batch in batches), "the stream must end and send only keep-alives"
    with open_stream(other.url, ident, batch_limit=5) as (_, again):
        assert take(again, 5)[0] == found
        assert commit(one.url, ident, forgetful, cursors["0"]).status_code == 422
        publish(one.url, name, range(5, 10))
        assert take(again, 5)[0] == [*range(5, 10)]
    assert stats(one.url, ident)[0]["unconsumed_events"] == 10


def test_a_client_that_takes_nothing_is_let_go_as_well(nodes, name):
    """A client that does not read or commit loses its partition after the commit timeout."""
    one, other = nodes
    create_event_type(one.url, name, 1)
    ident = subscribe(one.url, name)
    CLIENT.post(
        f"{one.url}/event-types/{name}/events", json=[{"n": str(n), "pad": "x" * 100_000} for n in range(400)]
    ).raise_for_status()
    with open_stream(one.url, ident, batch_limit=400, max_uncommitted_events=400, commit_timeout=1):
        until(lambda: streams(other.url, ident) == [""], "the end of the stalled stream")


def test_a_rebalance_waits_for_the_commit(nodes, name):
    """A partition moves to another client only when the events that were sent are committed."""
    one, other = nodes
    create_event_type(one.url, name, 2)
    ident = subscribe(one.url, name)
    publish(one.url, name, range(10))
    with open_stream(one.url, ident, batch_limit=10) as (first, batches):
        _, cursors = take(batches, 10)
        with open_stream(other.url, ident, batch_limit=10) as (second, others):
            until(lambda: "reassigning" in [p["state"] for p in stats(one.url, ident)])
            assert commit(other.url, ident, first, *cursors.values()).status_code == 204
            until(lambda: sorted(streams(one.url, ident)) == sorted([first, second]), "the rebalance")
            publish(one.url, name, range(10, 30))
            mine, _ = take(batches, 1)
            theirs, _ = take(others, 1)
            assert mine
            assert theirs
            assert not {*mine} & {*theirs}
            assert min(mine + theirs) >= 10


def test_commits_count_200_and_204_as_nakadi_says(url, name):
    """A commit is 204 if all cursors moved, else 200; 422 if unknown, 400 without a stream, 409 after a reset."""
    create_event_type(url, name, 2)
    ident = subscribe(url, name)
    publish(url, name, range(20))
    with open_stream(url, ident, batch_limit=20, max_uncommitted_events=100) as (stream, batches):
        _, cursors = take(batches, 20)
        assert commit(url, ident, stream, cursors["0"]).status_code == 204
        answer = commit(url, ident, stream, cursors["0"], cursors["1"])
        assert answer.status_code == 200
        assert answer.json() == {
            "items": [
                {"cursor": cursors["0"], "result": "outdated"},
                {"cursor": cursors["1"], "result": "committed"},
            ]
        }
        assert commit(url, ident, stream).status_code == 204
        assert commit(url, ident, str(uuid.uuid4()), cursors["0"]).status_code == 422
        assert commit(url, ident, "nonsense", cursors["0"]).status_code == 422
        assert commit(url, ident, stream, {**cursors["0"], "event_type": "other"}).status_code == 422
        path = f"{url}/subscriptions/{ident}/cursors"
        assert CLIENT.post(path, json={"items": []}).status_code == 400
        stored = {cursor["partition"]: cursor for cursor in CLIENT.get(path).json()["items"]}
        assert {p: c["offset"] for p, c in stored.items()} == {p: c["offset"] for p, c in cursors.items()}
        assert all(uuid.UUID(cursor["cursor_token"]) for cursor in stored.values())
        back = {"event_type": name, "partition": "0", "offset": "BEGIN"}
        assert CLIENT.patch(path, json={"items": [back]}).status_code == 204
        assert commit(url, ident, stream, cursors["1"]).status_code == 409
        assert not any(numbers(batch) for batch in batches), "a reset must end the stream"


def test_a_reset_ends_streams_on_every_node(nodes, name):
    """A reset ends the streams on all nodes, and the next stream starts at the new cursor."""
    one, other = nodes
    create_event_type(one.url, name, 1)
    ident = subscribe(one.url, name)
    publish(one.url, name, range(5))
    with open_stream(other.url, ident, batch_limit=5) as (stream, batches):
        _, cursors = take(batches, 5)
        commit(one.url, ident, stream, cursors["0"])
        back = [{"event_type": name, "partition": "0", "offset": "001-0001-000000000000000001"}]
        path = f"{one.url}/subscriptions/{ident}/cursors"
        assert CLIENT.patch(path, json={"items": back}).status_code == 204
        assert not any(numbers(batch) for batch in batches)
    with open_stream(other.url, ident, batch_limit=3) as (_, batches):
        assert take(batches, 3)[0] == [2, 3, 4]


def test_a_post_opens_a_stream_and_zero_is_the_default(url, name):
    """A POST can select partitions that exist and that no other stream selected. Zero means the default."""
    create_event_type(url, name, 3)
    ident = subscribe(url, name)
    publish(url, name, range(30))
    path = f"{url}/subscriptions/{ident}/events"
    zero = dict.fromkeys(
        ["max_uncommitted_events", "batch_limit", "stream_limit", "batch_flush_timeout", "stream_timeout",
         "commit_timeout"], 0,
    )  # fmt: skip
    mine = {"partitions": [{"event_type": name, "partition": "1"}]}
    with CLIENT.stream("POST", path, json={**zero, **mine}) as response:
        assert response.status_code == 200
        batches = map(json.loads, response.iter_lines())
        first = next(batches)
        assert first["cursor"]["partition"] == "1"
        assert len(first["events"]) == 1
        found = stats(url, ident)
        assert [p.get("assignment_type") for p in found] == [None, "direct", None]
        assert CLIENT.post(path, json={**zero, **mine}).status_code == 409
        other = {"partitions": [{"event_type": name, "partition": "7"}]}
        assert CLIENT.post(path, json={**zero, **other}).status_code == 422
        with open_stream(url, ident) as (sharing, _):
            until(lambda: [p["stream_id"] == sharing for p in stats(url, ident)] == [True, False, True])
    assert CLIENT.post(path, json={"stream_limit": 2, "batch_limit": 3}).status_code == 422
    assert CLIENT.post(path, json={"commit_timeout": 61}).status_code == 422
    assert CLIENT.post(path, json={"partitions": mine["partitions"] * 2}).status_code == 422
    for limit in ("batch_limit", "max_uncommitted_events"):
        assert CLIENT.get(path, params={limit: 0}).status_code == 422


def test_commits_are_taken_after_a_stream_but_not_of_foreign_partitions(url, name):
    """An ended stream can commit what it had, and no stream another's partition; a refusal moves nothing."""
    create_event_type(url, name, 2)
    ident = subscribe(url, name)
    publish(url, name, range(10))
    path = f"{url}/subscriptions/{ident}/events"
    mine = {"batch_limit": 10, "partitions": [{"event_type": name, "partition": "0"}]}
    with CLIENT.stream("POST", path, json=mine) as response:
        stream = response.headers["X-Nakadi-StreamId"]
        cursor = json.loads(next(response.iter_lines()))["cursor"]
        foreign = {**cursor, "partition": "1", "offset": "001-0001-000000000000000000"}
        assert commit(url, ident, stream, cursor, foreign).status_code == 422
        assert unconsumed(url, ident) == 10
    until(lambda: streams(url, ident) == ["", ""])
    assert commit(url, ident, stream, foreign).status_code == 422
    assert unconsumed(url, ident) == 10
    assert commit(url, ident, stream, cursor).status_code == 204
    assert commit(url, ident, stream, cursor).status_code == 200, "outdated"


def test_a_limit_ends_a_stream_when_its_events_are_committed(url, name):
    """As in Nakadi, a stream sends `stream_limit` events and ends when they are committed."""
    create_event_type(url, name, 1)
    ident = subscribe(url, name)
    publish(url, name, range(10))
    with open_stream(url, ident, batch_limit=2, stream_limit=5, max_uncommitted_events=100) as (stream, batches):
        found, cursors = take(batches, 5)
        assert found == [*range(5)]
        assert numbers(next(batches)) == [], "it stays open, with keep-alives"
        assert streams(url, ident) == [stream]
        assert commit(url, ident, stream, cursors["0"]).status_code == 204
        assert not any(numbers(batch) for batch in batches)
    until(lambda: streams(url, ident) == [""])
    with open_stream(url, ident, batch_limit=5) as (_, batches):
        assert take(batches, 5)[0] == [*range(5, 10)]


def test_keep_alives_come_and_can_end_a_stream(url, name):
    """A keep-alive has only the cursor. `stream_keep_alive_limit` ends the stream."""
    create_event_type(url, name, 1)
    ident = subscribe(url, name)
    with open_stream(url, ident, stream_keep_alive_limit=2) as (_, batches):
        found = list(batches)
    assert [set(batch) for batch in found] == [{"cursor"}, {"cursor"}]
    assert found[0]["cursor"]["offset"] == "001-0001--1"


def test_an_event_type_with_subscriptions_stays(url, name):
    """Deleting an event type with subscriptions is 409, as in Nakadi."""
    create_event_type(url, name, 1)
    first, second = (subscribe(url, name, consumer_group=group) for group in ("first", "second"))
    for ident in (first, second):
        answer = CLIENT.delete(f"{url}/event-types/{name}")
        assert answer.status_code == 409
        assert "subscriptions" in answer.json()["detail"]
        assert CLIENT.delete(f"{url}/subscriptions/{ident}").status_code == 204
    assert CLIENT.delete(f"{url}/event-types/{name}").status_code == 200


def test_an_event_type_that_vanishes_ends_its_streams(nodes, url, name):
    """Cursors of a deleted event type are UNAVAILABLE for a new one with the same name, until they are reset."""
    create_event_type(url, name, 1)
    ident = subscribe(url, name)
    publish(url, name, range(3))
    with open_stream(url, ident, batch_limit=3) as (stream, batches):
        _, cursors = take(batches, 3)
        commit(url, ident, stream, cursors["0"])
        vanish(nodes[0].log_file.parent / "data", name)
        create_event_type(url, name, 1)
        publish(url, name, range(10, 15))
        assert not any(numbers(batch) for batch in batches)
    answer = CLIENT.get(f"{url}/subscriptions/{ident}/events")
    assert answer.status_code == 422
    assert answer.json()["reason"] == "UNAVAILABLE"
    assert stats(url, ident)[0]["unavailable"] is True
    back = [{"event_type": name, "partition": "0", "offset": "BEGIN"}]
    assert CLIENT.patch(f"{url}/subscriptions/{ident}/cursors", json={"items": back}).status_code == 204
    with open_stream(url, ident, batch_limit=5) as (_, batches):
        assert take(batches, 5)[0] == [*range(10, 15)]


def test_a_cursor_that_expired_goes_on_at_the_oldest_and_says_so(tmp_path, name):
    """An expired cursor continues at the oldest event. Statistics and log report the skipped events."""
    flags = {"log_purge_interval_ms": 100, "logs_level": "warning"}
    with Server(tmp_path / "data", **flags) as server:
        create_event_type(server.url, name, 1, options={"retention_time": 4000})
        ident = subscribe(server.url, name)
        path = f"{server.url}/subscriptions/{ident}/cursors"
        assert CLIENT.patch(path, json={"items": []}).status_code == 204
        publish(server.url, name, range(10))
        until(lambda: stats(server.url, ident)[0]["unconsumed_events"] == 0, "the expiry of the events")
        assert stats(server.url, ident)[0]["skipped_events"] == 10
        with open_stream(server.url, ident, batch_limit=3) as (_, batches):
            next(batches)
            publish(server.url, name, range(10, 13))
            assert take(batches, 3)[0] == [10, 11, 12]
        assert stats(server.url, ident)[0]["skipped_events"] >= 10
        assert "10 events" in server.log_file.read_text()


def test_statistics_with_the_time_lag(url, name):
    """Statistics have Nakadi's fields, and `stream_id` is always a string."""
    create_event_type(url, name, 2)
    ident = subscribe(url, name)
    for partition in stats(url, ident):
        assert partition == {"partition": partition["partition"], "state": "unassigned", "stream_id": ""}
    with open_stream(url, ident, batch_limit=100, batch_flush_timeout=1) as (stream, batches):
        publish(url, name, range(20))
        _, cursors = take(batches, 10)
        found = stats(url, ident, show_time_lag="true")
        assert {(p["state"], p["stream_id"], p["assignment_type"]) for p in found} == {
            ("assigned", stream, "auto")
        }
        assert sum(p["unconsumed_events"] for p in found) == 20
        assert all(p["consumer_lag_seconds"] >= 0 for p in found)
        commit(url, ident, stream, *cursors.values())
        assert unconsumed(url, ident) == 10


def test_definitions_as_nakadi_clients_write_them(url, name):
    """Nulls and unknown fields are accepted, page links keep the filters, PUT changes the authorization."""
    create_event_type(url, name, 1)
    asked = {
        "id": None, "owning_application": "app ü", "event_types": [name, name], "consumer_group": None,
        "read_from": None, "initial_cursors": None, "created_at": None, "span_ctx": {"x": 1},
        "authorization": {"admins": [{"data_type": "*", "value": "*"}], "readers": []},
    }  # fmt: skip
    answer = CLIENT.post(f"{url}/subscriptions/", json=asked)
    assert answer.status_code == 201
    made = answer.json()
    assert answer.headers["Location"] == answer.headers["Content-Location"] == f"/subscriptions/{made['id']}"
    assert (made["event_types"], made["consumer_group"], made["read_from"]) == ([name], "default", "end")
    assert made["authorization"] == asked["authorization"]
    again = CLIENT.post(f"{url}/subscriptions", json=asked)
    assert (again.status_code, again.json()) == (200, made)
    for group in "abc":
        CLIENT.post(f"{url}/subscriptions", json={**asked, "consumer_group": group}).raise_for_status()
    query = {"owning_application": "app ü", "event_type": name, "limit": 2, "show_status": "true"}
    page = CLIENT.get(f"{url}/subscriptions", params=query).json()
    assert [one["consumer_group"] for one in page["items"]] == ["c", "b"]
    assert page["items"][0]["status"] == []
    following = CLIENT.get(url + page["_links"]["next"]["href"]).json()
    assert [one["consumer_group"] for one in following["items"]] == ["a", "default"]
    assert "next" not in following["_links"]
    assert CLIENT.get(url + following["_links"]["prev"]["href"]).json() == page
    changed = {**made, "authorization": {"admins": [], "readers": []}}
    assert CLIENT.put(f"{url}/subscriptions/{made['id']}", json=changed).status_code == 204
    assert CLIENT.get(f"{url}/subscriptions/{made['id']}").json()["authorization"] == changed["authorization"]
    assert CLIENT.delete(f"{url}/subscriptions/{made['id']}").status_code == 204
    assert CLIENT.get(f"{url}/subscriptions/{made['id']}").status_code == 404


def test_a_stopping_node_lets_its_streams_go_at_once(tmp_path, name):
    """SIGTERM ends the streams of a node and frees their partitions before the lease expires."""
    flags = {"coordination_session_timeout_ms": 60_000, "logs_level": "warning"}
    with Server(tmp_path / "data", **flags) as stays:
        leaving = Server(tmp_path / "data", **flags).start()
        create_event_type(stays.url, name, 1)
        ident = subscribe(stays.url, name)
        with open_stream(leaving.url, ident) as (_, batches):
            assert leaving.stop() == 0
            assert not any(numbers(batch) for batch in batches)
        publish(stays.url, name, range(1))
        with open_stream(stays.url, ident) as (_, batches):
            assert take(batches, 1)[0] == [0]


def test_a_subscription_reads_through_switches_and_growth(nodes, name):
    """A subscription reads each event once through switches, and new partitions from their start."""
    one, other = nodes
    create_event_type(one.url, name, 2)
    storage = f"s{uuid.uuid4().hex[:8]}"
    body = {"id": storage, "storage_type": "sqlite", "sqlite_configuration": {"directory": storage}}
    assert CLIENT.post(f"{one.url}/storages", json=body).status_code == 201
    ident = subscribe(one.url, name)
    ledger = Ledger()
    clients = [Subscriber(node.url, ident, ledger) for node in nodes]
    for client in clients:
        client.start()
    for round_, target in enumerate([storage, "default"]):
        publish(one.url, name, range(round_ * 100, round_ * 100 + 100))
        switched = CLIENT.post(f"{other.url}/event-types/{name}/timelines", json={"storage_id": target})
        assert switched.status_code == 201, switched.text
    publish(one.url, name, range(200, 300))
    until(lambda: len(ledger.committed) == 300, "300 committed events")
    grown = CLIENT.put(f"{one.url}/event-types/{name}/partition-count", json={"partition_count": 4})
    assert grown.status_code == 204, grown.text
    publish(other.url, name, range(300, 500))
    until(lambda: len(ledger.committed) == 500, "500 committed events")
    until(lambda: sorted(Counter(streams(one.url, ident)).values()) == [2, 2], "two partitions for each client")
    for client in clients:
        client.stop()
    assert Counter(n for _, n in ledger.delivered) == Counter(range(500))
    assert [client.errors for client in clients] == [[], []]
