"""Journals over plain HTTP: what is answered, and what is refused."""

from __future__ import annotations

import base64
import itertools
import json
import sqlite3
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from services import CLIENT, Server

_numbers = itertools.count(1)
LARGEST = 2**63 - 1


@pytest.fixture(scope="module", params=["sqlite", "kafka, postgresql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node on each set of engines."""
    flags = {"logs_level": "warning"}
    if request.param != "sqlite":
        postgres = request.getfixturevalue("postgres")
        flags["journal_url"] = postgres.url(postgres.new_database())
    with Server(tmp_path_factory.mktemp("journal") / "data", **flags) as started:
        if request.param != "sqlite":
            servers = request.getfixturevalue("kafka").bootstrap_servers
            storage = {
                "id": "kafka",
                "storage_type": "kafka",
                "kafka_configuration": {"bootstrap_servers": servers},
            }
            assert CLIENT.post(f"{started.url}/storages", json=storage).status_code == httpx.codes.CREATED
            assert CLIENT.put(f"{started.url}/storages/default/kafka").is_success
        yield started
        assert '"level": "error"' not in started.log_file.read_text()


class Topic:
    """The requests of one topic."""

    def __init__(self, server: Server) -> None:
        self.name = f"accounts-{next(_numbers)}"
        self.url = f"{server.url}/journals/{self.name}"
        assert CLIENT.put(self.url, json={"partitions": 2}).status_code == httpx.codes.CREATED

    def path(self, path: str = "", entity: str = "one") -> str:
        return f"{self.url}/{quote(entity, safe='')}{path}"

    def append(self, *events: dict[str, Any], entity: str = "one", **more: Any) -> httpx.Response:
        return CLIENT.post(self.path("/events", entity), json={"events": [*events], **more})

    def read(self, entity: str = "one", **query: Any) -> list[dict[str, Any]]:
        answer = CLIENT.get(self.path("/events", entity), params=query)
        assert answer.status_code == httpx.codes.OK, answer.text
        assert answer.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in answer.text.split("\n") if line]

    def numbers(self, **query: Any) -> list[int]:
        return [event["seq_nr"] for event in self.read(**query)]

    def pointer(self, entity: str = "one") -> tuple[int | None, int | None]:
        found = CLIENT.get(self.path("/pointer", entity)).json()
        return found["seq_nr"], found["delete_to"]


@pytest.fixture
def topic(server: Server) -> Topic:
    return Topic(server)


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    return answer.json()


# -- topics


def test_a_topic_is_created_once(server, topic):
    """201, then 200; another partition count or an ordinary event type is 409."""
    again = CLIENT.put(topic.url, json={"partitions": 2})
    assert (again.status_code, again.json()["partitions"]) == (200, 2)
    shown = CLIENT.get(topic.url).json()
    assert (shown["name"], shown["partitions"]) == (topic.name, 2)
    assert CLIENT.put(topic.url, json=shown).status_code == httpx.codes.OK
    assert shown in CLIENT.get(f"{server.url}/journals").json()["items"]
    just_before = {"limit": 1, "after": topic.name[:-1]}
    assert CLIENT.get(f"{server.url}/journals", params=just_before).json()["items"] == [shown]
    refused(CLIENT.put(topic.url, json={"partitions": 3}), 409, "conflict")
    CLIENT.post(f"{server.url}/event-types", json={"name": f"{topic.name}-events"}).raise_for_status()
    refused(CLIENT.put(f"{topic.url}-events", json={}), 409, "conflict")
    refused(CLIENT.get(f"{topic.url}-events"), 404, "not_found")
    refused(CLIENT.get(f"{topic.url}-none/one/pointer"), 404, "not_found")


@pytest.mark.parametrize(
    "body", [{"partitions": 0}, {"partitions": "2"}, {"storage": "none"}, {"size": 1}, {"name": "another"}, []]
)
def test_a_topic_that_cannot_be_created_is_refused(server, body):
    refused(CLIENT.put(f"{server.url}/journals/refused", json=body), 422, "invalid")


def test_a_topic_is_created_without_a_body(server):
    """All its settings are optional. A body that is no JSON is refused as ever."""
    url = f"{server.url}/journals/bodiless"
    refused(CLIENT.put(url, content=b" ", headers={"Content-Type": "application/json"}), 400, "malformed")
    assert CLIENT.put(url).status_code == httpx.codes.CREATED
    assert CLIENT.put(url, headers={"Content-Type": "application/json"}).status_code == httpx.codes.OK
    assert CLIENT.put(url, json={}).status_code == httpx.codes.OK


def test_a_topic_is_no_ordinary_event_type(server, topic):
    """It is listed, but not published to, read, grown or changed as one; deleting it deletes the journals."""
    url = f"{server.url}/event-types/{topic.name}"
    kind = CLIENT.get(url).json()
    assert kind["journal"] == "own"
    refused(CLIENT.post(f"{url}/events", json=[{"n": 1}]), 409, "conflict")
    refused(CLIENT.put(url, json=kind), 409, "conflict")
    refused(CLIENT.put(f"{url}/partition-count", json={"partition_count": 5}), 409, "conflict")
    refused(CLIENT.get(f"{url}/events"), 409, "conflict")
    asked = {"owning_application": "x", "event_types": [topic.name]}
    refused(CLIENT.post(f"{server.url}/subscriptions", json=asked), 409, "conflict")
    topic.append({"seq_nr": 1})
    assert CLIENT.delete(url).is_success
    refused(CLIENT.get(topic.path("/pointer")), 404, "not_found")
    assert CLIENT.put(topic.url, json={"partitions": 2}).status_code == httpx.codes.CREATED
    assert topic.pointer() == (None, None)


# -- events


def test_events_are_appended_and_read(topic):
    """The answer has the last seqNr and the cursor; a read has one event a line."""
    encoded = base64.b64encode(b"\x00\xff").decode()
    answer = topic.append(
        {"payload": {"a": [1]}, "tags": ["x"]}, {"payload_text": "two\u2028lines"}, {"payload_base64": encoded},
        {}, expected=0, metadata={"by": "me"},
    )  # fmt: skip
    assert answer.status_code == httpx.codes.CREATED, answer.text
    assert answer.json()["seq_nr"] == 4
    assert answer.json()["cursor"].startswith("001-")
    found = topic.read()
    times = {event.pop("timestamp") for event in found}
    assert len(times) == 1
    assert times.pop().endswith("Z")
    common = {"tags": [], "metadata": {"by": "me"}}
    assert found == [
        {"seq_nr": 1, "payload": {"a": [1]}, **common, "tags": ["x"]},
        {"seq_nr": 2, "payload_text": "two\u2028lines", **common},
        {"seq_nr": 3, "payload_base64": encoded, **common},
        {"seq_nr": 4, **common},
    ]


def test_json_payloads_keep_their_bytes(topic):
    """Numbers that no decoder keeps or reads, and the order of members."""
    digits = "9" * 4301
    text = f'{{"z": 1e400, "a":{digits},"n":null, "f": 1.0, "e": 1e99999999999999999999}}'
    body = f'{{"events": [{{"payload": {text}}}, {{"payload":\n null}}], "expected": 0}}'
    sent = CLIENT.post(topic.path("/events"), content=body, headers={"Content-Type": "application/json"})
    assert sent.status_code == httpx.codes.CREATED, sent.text
    lines = CLIENT.get(topic.path("/events")).text.splitlines()
    assert f'"payload":{text},' in lines[0]
    assert '"payload":null' in lines[1]
    assert "metadata" not in json.loads(lines[1])


def test_a_read_has_a_range(topic):
    topic.append(*({"payload": n} for n in range(6)), expected=0)
    assert topic.numbers() == topic.numbers(**{"from": 0}) == [1, 2, 3, 4, 5, 6]
    assert topic.numbers(**{"from": 2, "to": 4}) == [2, 3, 4]
    assert topic.numbers(**{"from": 2, "limit": 2}) == [2, 3]
    assert topic.numbers(limit=0) == topic.numbers(**{"from": 7}) == topic.numbers(entity="absent") == []


def test_a_conflict_has_the_pointer(topic):
    topic.append({}, {}, expected=0)
    for body in ({"expected": 0}, {"expected": 1}, {"expected": 5}):
        assert refused(topic.append({}, **body), 409, "conflict")["seq_nr"] == 2
    assert refused(topic.append({"seq_nr": 2}), 409, "conflict")["seq_nr"] == 2
    assert topic.numbers() == [1, 2]
    CLIENT.delete(topic.path("/events"), params={"to": 2})
    assert refused(topic.append({}, expected=0), 409, "conflict")["seq_nr"] == 2


def test_a_repeated_append_has_the_first_answer(topic):
    body = {"expected": 0, "append_id": "7"}
    first = topic.append({"payload": 1}, **body)
    topic.append({"payload": 2}, expected=1)
    again = topic.append({"payload": 1}, **body)
    assert (again.status_code, again.json()) == (201, first.json())
    assert topic.numbers() == [1, 2]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"events": []},
        {"events": [{}]},
        {"events": [{"seq_nr": 0}]},
        {"events": [{"seq_nr": LARGEST + 1}]},
        {"events": [{"seq_nr": "1"}]},
        {"events": [{"seq_nr": 2}, {"seq_nr": 1}]},
        {"events": [{"seq_nr": 2}], "expected": 2},
        {"events": [{"seq_nr": 2}], "expected": 3},
        {"events": [{}], "expected": -1},
        {"events": [{"payload": 1, "payload_text": "1"}], "expected": 0},
        {"events": [{"payload_base64": "?"}], "expected": 0},
        {"events": [{"payload_text": 1}], "expected": 0},
        {"events": [{"tags": "x"}], "expected": 0},
        {"events": [{"other": 1}], "expected": 0},
        {"events": [{}], "expected": 0, "other": 1},
        {"events": [{}], "expected": 0, "expire_after": -1},
        {"events": [{}], "expected": 0, "expire_after": "1d"},
        {"events": [{}], "expected": 0, "append_id": ""},
        {"events": [{}], "expected": 0, "since": "BEGIN"},
    ],
)
def test_a_malformed_append_is_refused(topic, body):
    refused(CLIENT.post(topic.path("/events"), json=body), 422, "invalid")
    assert topic.pointer() == (None, None)


@pytest.mark.parametrize("query", ["from=-1", "from=x", "to=-1", "limit=-1", f"from={LARGEST + 1}", "to=null"])
def test_a_malformed_range_is_refused(topic, query):
    refused(CLIENT.get(f"{topic.path('/events')}?{query}"), 422, "invalid")


def test_bytes_that_are_not_utf_8_are_refused(topic):
    body = b'{"events": [{"payload": "\xff"}], "expected": 0}'
    sent = CLIENT.post(topic.path("/events"), content=body, headers={"Content-Type": "application/json"})
    assert sent.status_code in {400, 422}


# -- deleting


def test_events_are_deleted_up_to_a_number(topic):
    """A delete without a number is refused; the pointer stays."""
    topic.append({}, {}, {}, expected=0)
    for query in ({}, {"to": 0}, {"to": "x"}):
        refused(CLIENT.delete(topic.path("/events"), params=query), 422, "invalid")
    assert CLIENT.delete(topic.path("/events"), params={"to": 2}).status_code == httpx.codes.NO_CONTENT
    assert (topic.numbers(), topic.pointer()) == ([3], (3, 2))
    assert CLIENT.delete(topic.path("/events"), params={"to": 99}).status_code == httpx.codes.NO_CONTENT
    assert (topic.numbers(), topic.pointer()) == ([], (3, 3))
    assert CLIENT.delete(topic.path("/events", "absent"), params={"to": 2}).status_code == httpx.codes.NO_CONTENT


def test_a_delete_can_name_the_life_of_the_journal(topic):
    """The `since` of the pointer; in another life the delete is refused and changes nothing."""
    topic.append({}, {}, expected=0)
    since = CLIENT.get(topic.path("/pointer")).json()["since"]
    query = {"to": 1, "since": since}
    assert CLIENT.delete(topic.path("/events"), params=query).status_code == httpx.codes.NO_CONTENT
    CLIENT.delete(topic.path())
    refused(CLIENT.delete(topic.path("/events"), params=query), 409, "conflict")
    topic.append({}, {}, expected=0)
    assert refused(CLIENT.delete(topic.path("/events"), params=query), 409, "conflict")["seq_nr"] == 2
    refused(CLIENT.delete(topic.path("/events"), params={"to": 1, "since": "x"}), 422, "invalid_cursor")
    assert topic.numbers() == [1, 2]


def test_a_journal_is_purged(topic):
    topic.append({"payload": "old"}, expected=0)
    assert CLIENT.put(topic.path("/snapshots/1"), json={"payload": 1}).status_code == httpx.codes.NO_CONTENT
    assert CLIENT.delete(topic.path()).status_code == httpx.codes.NO_CONTENT
    assert (topic.numbers(), topic.pointer()) == ([], (None, None))
    refused(CLIENT.get(topic.path("/snapshots/latest")), 404, "not_found")
    topic.append({"payload": "new"}, expected=0)
    assert [event["payload"] for event in topic.read()] == ["new"]
    refused(CLIENT.get(topic.path("/snapshots/1")), 404, "not_found")


# -- snapshots


def test_snapshots_are_saved_found_and_deleted(topic):
    topic.append(*[{}] * 5, expected=0)
    refused(CLIENT.get(topic.path("/snapshots/latest")), 404, "not_found")
    for seq_nr, body in ((2, {"payload": {"n": 2}}), (4, {"payload_text": "four"})):
        assert CLIENT.put(topic.path(f"/snapshots/{seq_nr}"), json=body).status_code == httpx.codes.NO_CONTENT
    latest = topic.path("/snapshots/latest")
    assert CLIENT.get(latest).json() == {"seq_nr": 4, "payload_text": "four"}
    assert CLIENT.get(latest, params={"at_most": 3}).json() == {"seq_nr": 2, "payload": {"n": 2}}
    assert CLIENT.get(topic.path("/snapshots/2")).json() == {"seq_nr": 2, "payload": {"n": 2}}
    refused(CLIENT.get(topic.path("/snapshots/3")), 404, "not_found")
    assert CLIENT.delete(topic.path("/snapshots/4")).status_code == httpx.codes.NO_CONTENT
    assert CLIENT.get(latest).json()["seq_nr"] == 2


def test_a_malformed_snapshot_is_refused(topic):
    topic.append({}, expected=0)
    for seq_nr in ("0", "x", "-1", "١", str(LARGEST + 1), "9" * 5000):
        refused(CLIENT.put(topic.path(f"/snapshots/{quote(seq_nr)}"), json={"payload": 1}), 422, "invalid")
    for body in ({}, {"payload": 1, "payload_text": "1"}, {"seq_nr": 2, "payload": 1}, {"other": 1}):
        refused(CLIENT.put(topic.path("/snapshots/1"), json=body), 422, "invalid")
    refused(CLIENT.put(topic.path("/snapshots/1", "absent"), json={"payload": 1}), 404, "not_found")


# -- ids


def test_ids_are_any_text(topic):
    """Of up to 255 characters."""
    for entity in ("a/b", "%", "..", "ä€😀", "events", "x" * 255):
        path = topic.path("/events", entity).replace("/../", "/%2E%2E/")
        assert CLIENT.post(path, json={"events": [{}], "expected": 0}).status_code == httpx.codes.CREATED, entity
        assert len(CLIENT.get(path).text.splitlines()) == 1
    refused(topic.append({}, entity="x" * 256, expected=0), 422, "invalid")


@pytest.mark.parametrize("encoded", ["%ff", "%fe", "a%2F%ff", "%C3"])
def test_an_id_that_is_not_utf_8_is_refused(topic, encoded):
    """Otherwise different ids would be the same journal."""
    refused(CLIENT.post(f"{topic.url}/{encoded}/events", json={"events": [{}], "expected": 0}), 400, "malformed")


def test_the_replacement_character_is_an_id(topic):
    assert topic.append({}, entity="\ufffd", expected=0).status_code == httpx.codes.CREATED
    assert [event["seq_nr"] for event in topic.read("\ufffd")] == [1]


# -- a read that cannot be completed


def test_a_read_that_fails_in_the_middle_does_not_look_complete(tmp_path):
    """The last line has the problem. The journal is larger than what a node keeps in memory."""
    with Server(tmp_path / "data", logs_level="warning") as server:
        topic = Topic(server)
        for start in range(0, 450, 15):
            answer = topic.append(*[{"payload": "x" * 60_000}] * 15, expected=start)
            assert answer.status_code == httpx.codes.CREATED
        (file,) = (tmp_path / "data" / "topics").glob("accounts-*.db")
        with sqlite3.connect(file) as database:
            database.execute(
                "UPDATE batches SET payload = zeroblob(length(payload)) "
                "WHERE rowid = (SELECT rowid FROM batches ORDER BY rowid LIMIT 1 OFFSET 5)"
            )
        database.close()
        *events, last = topic.read()
        assert [event["seq_nr"] for event in events] == [*range(1, len(events) + 1)]
        assert 0 < len(events) <= 75
        assert last["problem"]["code"] == "damaged"
        refused(CLIENT.get(topic.path("/events"), params={"from": 76}), 500, "damaged")
