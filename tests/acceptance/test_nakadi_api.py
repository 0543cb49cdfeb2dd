"""Behaviour that existing Nakadi clients rely on, tested with a node."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import zstandard

from services import DEADLINE_S, Server, until

EID = "105a76d8-db49-4144-ace7-e683e8f4ba46"
METADATA = {"eid": EID, "occurred_at": "2024-05-01T12:00:00Z"}
FROM_BEGIN = '[{"partition": "0", "offset": "BEGIN"}]'
JSON = {"Content-Type": "application/json"}
#: Limits that end a stream about a second after its last event.
SHORT = {"stream_timeout": 1, "batch_flush_timeout": 1}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("nakadi") / "data") as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=DEADLINE_S) as opened:
        yield opened


@pytest.fixture
def create(client: httpx.Client):
    """A function that creates an event type with a unique name and returns the path of its events."""

    def make(**definition: Any) -> str:
        name = f"et.{uuid4().hex}"
        answer = client.post("/event-types", json={"name": name, **definition})
        assert answer.status_code == 201, answer.text
        return f"/event-types/{name}/events"

    return make


def lines(client: httpx.Client, path: str, cursors: str | None = FROM_BEGIN, **limits: int) -> list[bytes]:
    """All lines of a stream until it ends."""
    headers = {} if cursors is None else {"X-Nakadi-Cursors": cursors}
    answer = client.get(path, headers=headers, params=limits)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-json-stream"
    text = answer.content
    assert text == b"" or text.endswith(b"\n")
    return text.split(b"\n")[:-1]


def batches(client: httpx.Client, path: str, cursors: str | None = FROM_BEGIN, **limits: int) -> list[Any]:
    return [json.loads(line) for line in lines(client, path, cursors, **limits)]


def events(client: httpx.Client, path: str, count: int) -> list[Any]:
    """The first `count` events of partition 0."""
    found = batches(client, path, stream_limit=count, batch_limit=count)
    return [event for batch in found for event in batch.get("events", [])]


# -- streams


def test_headers_come_before_the_first_batch(client: httpx.Client, create):
    """The response headers are sent when the stream opens, before there are events."""
    path = create()
    with client.stream("GET", path) as answer:
        assert answer.status_code == 200
        assert client.post(path, json=[{"a": 1}]).status_code == 200
        found = (batch["events"] for batch in map(json.loads, answer.iter_lines()) if "events" in batch)
        assert next(found) == [{"a": 1}], "the headers were late"


def test_one_line_per_batch_and_nothing_else_in_it(client: httpx.Client, create):
    """Each batch is one line with a cursor and events, also if an event was published over several lines."""
    path = create()
    assert (
        client.post(path, content=b'[{"a":\n 1},\r\n{"a":\n 2,\r\n"b": "\\n"}]', headers=JSON).status_code == 200
    )
    found = lines(client, path, batch_limit=2, **SHORT)
    assert [json.loads(line) for line in found] == [
        {
            "cursor": {"partition": "0", "offset": "001-0001-000000000000000001"},
            "events": [{"a": 1}, {"a": 2, "b": "\n"}],
        }
    ]


def test_a_quiet_stream_says_that_it_lives(client: httpx.Client, create):
    """An idle stream sends batches that have only the cursor, so a client can detect a lost connection."""
    path = create()
    client.post(path, json=[{"a": 1}])
    found = batches(client, path, None, batch_flush_timeout=1, stream_timeout=5)
    assert 2 <= len(found) <= 5
    assert all(batch == {"cursor": {"partition": "0", "offset": "001-0001-000000000000000000"}} for batch in found)


def test_without_cursors_a_stream_starts_at_the_end(client: httpx.Client, create):
    """A stream without cursors sends only new events, of every partition."""
    path = create(partitions=2, partition_strategy="user_defined")
    old = [{"metadata": {"partition": str(p)}, "age": "old"} for p in range(2)]
    assert client.post(path, json=old).status_code == 200
    with client.stream("GET", path, params={"stream_limit": 2}) as answer:
        assert client.post(path, json=[{**event, "age": "new"} for event in old]).status_code == 200
        found = [json.loads(line) for line in answer.iter_lines()]
    assert sorted(batch["cursor"]["partition"] for batch in found) == ["0", "1"]
    assert {event["age"] for batch in found for event in batch["events"]} == {"new"}


def test_batch_limit_is_the_most_in_a_batch(client: httpx.Client, create):
    """Seven events with a batch limit of three are sent as three, three and one."""
    path = create()
    client.post(path, json=[{"n": n} for n in range(7)])
    found = batches(client, path, batch_limit=3, **SHORT)
    assert [len(batch["events"]) for batch in found] == [3, 3, 1]
    assert [event["n"] for batch in found for event in batch["events"]] == [*range(7)]


def test_stream_limit_ends_the_stream_after_so_many_events(client: httpx.Client, create):
    """The stream ends after exactly `stream_limit` events, also within a batch."""
    path = create()
    client.post(path, json=[{"n": n} for n in range(7)])
    assert [len(batch["events"]) for batch in batches(client, path, batch_limit=3, stream_limit=5)] == [3, 2]


def test_stream_keep_alive_limit_ends_a_stream_that_stays_quiet(client: httpx.Client, create):
    """The stream ends after `stream_keep_alive_limit` batches without events in a row."""
    found = batches(client, create(), batch_flush_timeout=1, stream_keep_alive_limit=2)
    assert found == [{"cursor": {"partition": "0", "offset": "001-0001--1"}}] * 2


def test_a_stream_goes_on_where_its_cursor_says(client: httpx.Client, create):
    """A stream from the cursor of a batch sends exactly the events after it. All spellings of BEGIN work."""
    path = create()
    client.post(path, json=[{"n": n} for n in range(4)])
    for number, batch in enumerate(batches(client, path, stream_limit=3)):
        cursor = json.dumps([batch["cursor"]])
        (rest,) = batches(client, path, cursor, batch_limit=9, **SHORT)
        assert [event["n"] for event in rest["events"]] == [*range(number + 1, 4)]
    for spelling in ("BEGIN", "begin", "-1", "001-0001--1"):
        cursor = json.dumps([{"partition": "0", "offset": spelling}])
        assert batches(client, path, cursor, stream_limit=1)[0]["events"] == [{"n": 0}]


# -- the content of events

TEXTS = [
    '{"n":1.10}',
    '{"n":1E5}',
    '{"n":-0.0}',
    '{"n":123456789012345678901234567890}',
    '{"n":3.141592653589793238462643383279}',
    '{"n":1e400}',
    '{"b":1,"a":2}',
    '{"a":1,"a":2}',
    '{"text":"\\u0000 \\u2028 \\ud834\\udd1e"}',
    '{"text":"Grüße, ☃ 𝄞 \u2028 \u0085 ﷽"}',
    '{"deep":' + "[" * 200 + "]" * 200 + "}",
    '{ "spaced" : [ 1 , 2 ] }',
]


def test_events_come_back_as_they_came(client: httpx.Client, create):
    """Events are read byte for byte as they were published: numbers, Unicode, order of fields, spaces."""
    path = create()
    assert client.post(path, content=f"[{','.join(TEXTS)}]".encode(), headers=JSON).status_code == 200
    (line,) = lines(client, path, stream_limit=len(TEXTS), batch_limit=len(TEXTS))
    assert line.decode().partition('"events":')[2] == f"[{','.join(TEXTS)}]}}"


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_bodies_may_be_compressed(client: httpx.Client, create, encoding: str, pack: Any):
    """Bodies compressed with gzip or zstd are accepted."""
    path = create()
    sent = client.post(path, content=pack(b'[{"a": 1}]'), headers={**JSON, "Content-Encoding": encoding})
    assert (sent.status_code, sent.content) == (200, b"")
    assert events(client, path, 1) == [{"a": 1}]


def test_a_publish_that_worked_has_no_body(client: httpx.Client, create):
    """A successful publish is 200 with an empty body, also for an empty array."""
    path = create()
    for body in ([{"a": 1}], []):
        answer = client.post(path, json=body)
        assert (answer.status_code, answer.content) == (200, b"")


def test_metadata_is_completed_on_reception(client: httpx.Client, create):
    """The metadata of the publisher stays unchanged, and the node adds its own fields."""
    path = create(category="business")
    given = {
        **METADATA,
        "occurred_at": "2024-05-01T12:00:00.123456789+02:00",
        "parent_eids": [EID],
        "span_ctx": {},
    }
    sent = client.post(path, json=[{"metadata": given, "a": 1}], headers={"X-Flow-Id": "flow 7"})
    assert sent.status_code == 200, sent.text
    ((event),) = events(client, path, 1)
    metadata = event["metadata"]
    assert metadata.items() >= given.items()
    assert metadata["flow_id"] == "flow 7"
    assert metadata["event_type"] == path.split("/")[2]
    assert metadata["partition"] == "0"
    assert metadata["version"] == "1.0.0"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", metadata["received_at"])


def test_a_flow_id_is_made_up_where_there_is_none(client: httpx.Client, create):
    """A missing flow id is generated for each publish. A flow id in the event stays."""
    path = create(category="business")
    for metadata in (METADATA, METADATA, {**METADATA, "flow_id": "mine"}):
        assert client.post(path, json=[{"metadata": metadata}]).status_code == 200
    first, second, third = (event["metadata"]["flow_id"] for event in events(client, path, 3))
    assert first
    assert second
    assert first != second
    assert third == "mine"


# -- event types


def test_event_types_and_schemas_say_when_they_were_made(client: httpx.Client, create):
    """Event types and schemas have `created_at`, `updated_at` and `version`, which clients expect."""
    path = create().removesuffix("/events")
    kind = client.get(path).json()
    assert kind["created_at"] == kind["updated_at"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", kind["created_at"])
    assert kind["schema"]["version"] == "1.0.0"
    assert kind["schema"]["created_at"] == kind["created_at"]
    changed = client.put(path, json={**kind, "schema": {"type": "json_schema", "schema": '{"title": "t"}'}})
    assert changed.status_code == 200, changed.text
    assert changed.json()["schema"]["version"] == "1.0.1"
    assert client.get(f"{path}/schemas/latest").json() == changed.json()["schema"]


def test_a_name_has_up_to_255_characters(client: httpx.Client):
    """A name of the greatest length works on all routes."""
    name = "n" * 255
    assert client.post("/event-types", json={"name": name}).status_code == 201
    path = f"/event-types/{name}/events"
    assert client.post(path, json=[{"a": 1}]).status_code == 200
    assert events(client, path, 1) == [{"a": 1}]
    asked = {"owning_application": "app", "event_types": [name]}
    subscription = client.post("/subscriptions", json=asked)
    assert subscription.status_code == 201, subscription.text
    assert client.delete(f"/subscriptions/{subscription.json()['id']}").status_code == 204
    assert client.delete(f"/event-types/{name}").status_code == 200


PARTITIONS = [
    ({}, 1),
    ({"partitions": 3}, 3),
    ({"default_statistic": {"read_parallelism": 2, "write_parallelism": 5}}, 5),
    ({"default_statistic": {"messages_per_minute": 9, "message_size": 9, "read_parallelism": 4}}, 4),
    ({"partitions": 2, "default_statistic": {"read_parallelism": 7, "write_parallelism": 7}}, 2),
]


@pytest.mark.parametrize(("definition", "count"), PARTITIONS)
def test_partitions_are_counted_as_nakadi_does(client: httpx.Client, create, definition: Any, count: int):
    """The partition count is `partitions`, else the largest requested parallelism, else one."""
    path = create(**definition).removesuffix("/events")
    assert client.get(path).json()["partitions"] == count
    found = client.get(f"{path}/partitions").json()
    assert [partition["partition"] for partition in found] == [str(p) for p in range(count)]


def test_an_authorization_is_kept(client: httpx.Client, create):
    """An authorization is stored and returned. It can be changed, and is null if it is not set."""
    me = [{"data_type": "user", "value": "me"}]
    authorization = {"admins": me, "readers": me, "writers": me}
    path = create(authorization=authorization).removesuffix("/events")
    kind = client.get(path).json()
    assert kind["authorization"] == authorization
    changed = {**kind, "authorization": {**authorization, "readers": [{"data_type": "*", "value": "*"}]}}
    assert client.put(path, json=changed).json()["authorization"] == changed["authorization"]
    assert client.get(path).json()["authorization"] == changed["authorization"]
    assert client.get(create().removesuffix("/events")).json()["authorization"] is None


def test_unknown_fields_are_ignored(client: httpx.Client, create):
    """Unknown fields, headers and parameters of Nakadi clients are ignored."""
    path = create(event_owner_selector=None, event_type_partitions={}, x=[1])
    assert client.post(path, json=[{"a": 1}], headers={"span_ctx": "{}"}).status_code == 200
    assert (
        client.get(f"{path}?unknown=1&stream_limit=1", headers={"X-Nakadi-Cursors": FROM_BEGIN}).status_code == 200
    )


def test_paging_links_are_paths_that_keep_the_limit(client: httpx.Client, create):
    """A client gets all pages by following `next`, and goes back by `prev`."""
    path = create(compatibility_mode="none").removesuffix("/events") + "/schemas"
    for number in range(4):
        assert client.post(path, json={"schema": f'{{"title": "{number}"}}'}).status_code == 201
    pages = [client.get(f"{path}?limit=2").json()]
    while "next" in pages[-1]["_links"]:
        link = pages[-1]["_links"]["next"]["href"]
        assert link.startswith(path)
        assert "limit=2" in link
        pages.append(client.get(link).json())
    assert [[s["version"] for s in page["items"]] for page in pages] == [
        ["1.0.4", "1.0.3"],
        ["1.0.2", "1.0.1"],
        ["1.0.0"],
    ]
    assert client.get(pages[-1]["_links"]["prev"]["href"]).json() == pages[1]


def test_event_types_can_be_listed_in_pages(client: httpx.Client, create):
    """Without a limit all of them are listed. The `Link` of a page leads to the next one and keeps the filter."""
    owner = f"owner {uuid4().hex}"
    made = sorted(create(owning_application=owner).split("/")[2] for _ in range(5))
    everything = client.get("/event-types", params={"owning_application": owner})
    assert ([kind["name"] for kind in everything.json()], everything.links) == (made, {})
    page = client.get("/event-types", params={"owning_application": owner, "limit": 2})
    pages = [page.json()]
    while "next" in page.links:
        page = client.get(page.links["next"]["url"])
        pages.append(page.json())
    assert [[kind["name"] for kind in found] for found in pages] == [made[:2], made[2:4], made[4:]]
    assert client.get("/event-types", params={"limit": 0}).status_code == 422


# -- HTTP


@pytest.mark.parametrize(
    "path", ["/event-types/", "/storages/", "/storages/default/", "/health/", "/event-types//"]
)
def test_a_slash_at_the_end_changes_nothing(client: httpx.Client, path: str):
    """A path with a slash at the end has the same answer."""
    assert client.get(path).status_code == 200
    assert client.get(path).content == client.get(path.rstrip("/")).content


ACCEPTS = ["application/json, */*; q=0.2", "*/*", "text/html, application/json;q=0.9", "application/x-json-stream"]


@pytest.mark.parametrize("accept", ACCEPTS)
def test_any_accept_header_gets_json(client: httpx.Client, create, accept: str):
    """Any `Accept` header, with lists, qualities or wildcards, gets the same content type."""
    path = create()
    client.post(path, json=[{"a": 1}], headers={"Accept": accept})
    assert client.get("/event-types", headers={"Accept": accept}).headers["content-type"] == "application/json"
    headers = {"Accept": accept, "X-Nakadi-Cursors": FROM_BEGIN}
    answer = client.get(path, headers=headers, params={"stream_limit": 1})
    assert answer.headers["content-type"] == "application/x-json-stream"


def test_large_answers_are_compressed_for_clients_that_accept_it(client: httpx.Client, create):
    """Streams and small answers are never compressed; caches are told that answers differ."""
    path = create(labels={"pad": "x" * 2000})
    plain = client.get("/event-types", headers={"Accept-Encoding": "identity"})
    packed = client.get("/event-types", headers={"Accept-Encoding": "br, GZIP;q=0.5"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"])
    assert packed.content == plain.content
    assert plain.headers["vary"] == packed.headers["vary"] == "accept-encoding"
    for accept in ("gzip;q=0", "*;q=0", "br", ""):
        assert "content-encoding" not in client.get("/event-types", headers={"Accept-Encoding": accept}).headers
    assert "content-encoding" not in client.get("/health", headers={"Accept-Encoding": "gzip"}).headers
    client.post(path, json=[{"pad": "x" * 5000}])
    headers = {"X-Nakadi-Cursors": FROM_BEGIN, "Accept-Encoding": "gzip"}
    assert "content-encoding" not in client.get(path, headers=headers, params={"stream_limit": 1}).headers


def test_a_flow_id_is_in_the_answer_the_log_and_the_events(client: httpx.Client, server: Server, create):
    """The id of the client, or a new one if it sent none or one that is not valid; also in refusals."""
    path = create(category="business")
    made = []
    for given, valid in (("flow 7", True), (None, False), ("", False), ("x" * 201, False), ("\xe9", False)):
        headers = {} if given is None else {"X-Flow-Id": given.encode("latin-1")}
        for answer in (
            client.post(path, json=[{"metadata": METADATA}], headers=headers),
            client.get("/nothing", headers=headers),
            client.get("/health", headers={**headers, "Host": "elsewhere.example", "Origin": "http://a.example"}),
            client.head(path, headers=headers),
        ):
            assert (answer.headers["x-flow-id"] == given) is valid
            made.append(answer.headers["x-flow-id"])
    assert all(made)
    stored = [event["metadata"]["flow_id"] for event in events(client, path, 5)]
    assert stored == made[::4]
    until(lambda: stored[-1] in server.log_file.read_text(), "the line of the request")
    lines_of = [json.loads(line) for line in server.log_file.read_text().splitlines() if line.startswith("{")]
    posts = {line["flow_id"] for line in lines_of if line["message"] == f"POST {path}"}
    assert posts == {*stored}


PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"


def test_metrics_are_documented_and_count_what_has_no_route(client: httpx.Client):
    """A node shows nothing that the reference page lacks. Unknown paths and methods get no labels of their own."""
    for method, path in (("GET", "/nothing/1"), ("GET", "/nothing/2"), ("PURGE", "/health"), ("GET", "/health")):
        client.request(method, path)
    text = client.get("/metrics").text
    documented = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE))
    shown = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    created = {name for name in shown if name.endswith("_created")}
    assert {name: kind for name, kind in shown.items() if name not in created}.items() <= documented.items()
    assert {name for name in documented if name.startswith("strandline_schedule")}
    assert 'strandline_http_requests_total{method="GET",route="none",status="404"}' in text
    assert 'strandline_http_requests_total{method="other",route="/health",status="405"} 1.0' in text
    assert "/nothing" not in text


def test_head_is_get_without_a_body(client: httpx.Client, create):
    """HEAD has the status of GET on every path. On a stream it does not open one."""
    path = create()
    for asked in ("/", "/health", "/metrics", "/openapi.json", "/event-types", path.removesuffix("/events"), path):
        answer = client.head(asked)
        assert (answer.status_code, answer.content) == (200, b"")
    assert client.head("/nothing").status_code == 404
    assert client.head(path, headers={"X-Nakadi-Cursors": "x"}).status_code == 400


def test_a_new_event_type_says_where_it_is(client: httpx.Client):
    """The `Location` of a 201 is the path of the new event type."""
    answer = client.post("/event-types", json={"name": "somewhere.new"})
    assert answer.headers["location"] == "/event-types/somewhere.new"
    assert client.get(answer.headers["location"]).json() == answer.json()
    assert client.delete("/event-types/somewhere.new").status_code == 200
