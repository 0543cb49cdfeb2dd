"""The schedule over plain HTTP: settings, messages, leases, what is refused, and clients that vanish."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from services import CLIENT, Server, is_stopped, until

DAY_MS = 86_400_000
DEFAULTS = {
    "buckets": 1024,
    "max_future_ms": 365 * DAY_MS,
    "max_lease_ms": 300_000,
    "max_body_bytes": 1_048_576,
    "dedupe_ms": DAY_MS,
    "max_attempts": None,
}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node on each engine."""
    flags = {"logs_level": "warning"}
    if request.param == "postgresql":
        postgres = request.getfixturevalue("postgres")
        flags["schedule_url"] = postgres.url(postgres.new_database())
    with Server(tmp_path_factory.mktemp("schedule") / "data", **flags) as started:
        yield started
        assert '"level": "error"' not in started.log_file.read_text()


class Room:
    """The requests of one schedule."""

    def __init__(self, server: Server, name: str, **settings: Any) -> None:
        self.server, self.name = server, name
        self.url = f"{server.url}/schedules/{name}"
        assert CLIENT.put(self.url, json=settings).status_code == httpx.codes.CREATED

    def post(self, path: str, *items: Any, **more: Any) -> httpx.Response:
        return CLIENT.post(f"{self.url}/{path}", json={"items": [*items], **more} if items else more)

    def get(self, path: str = "", **query: Any) -> httpx.Response:
        return CLIENT.get(f"{self.url}{path}", params=query)

    def create(self, *items: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self.post("messages", *({"producer_group": "g", "body": 1, **item} for item in items))
        assert answer.status_code == httpx.codes.OK, answer.text
        return answer.json()["items"]

    def pull(self, consumer: str = "c", limit: int = 100, lease_ms: int = 30_000, **more: Any) -> list[Any]:
        answer = self.post("leases", consumer=consumer, lease_ms=lease_ms, limit=limit, **more)
        assert answer.status_code == httpx.codes.OK, answer.text
        return answer.json()["items"]


@pytest.fixture
def room(server: Server, request: pytest.FixtureRequest) -> Room:
    """A schedule of its own for every test."""
    return Room(server, f"s{abs(hash(request.node.nodeid))}")


def codes(answer: httpx.Response) -> list[str]:
    """The code of every item, or `ok`."""
    return [item.get("code", item["status"]) for item in answer.json()["items"]]


def open_requests(server: Server) -> float:
    """How many requests are not answered, this one included."""
    text = CLIENT.get(f"{server.url}/metrics").text
    return float(text.split("\nstrandline_open_requests ")[1].split()[0])


def assert_problem(answer: httpx.Response, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]


# -- schedules


def test_a_schedule_is_put_without_a_body(server):
    """All its settings are optional."""
    url = f"{server.url}/schedules/bodiless"
    assert CLIENT.put(url).status_code == httpx.codes.CREATED
    assert CLIENT.get(url).json() == CLIENT.put(url, json={}).json()


def test_settings_are_put_read_replaced_and_deleted(server):
    """A put replaces all settings: what is left out gets its default."""
    url = f"{server.url}/schedules/settings"
    first = CLIENT.put(url, json={"buckets": 89, "max_attempts": 3})
    assert (first.status_code, first.json()) == (
        201,
        {"name": "settings", **DEFAULTS, "buckets": 89, "max_attempts": 3},
    )
    second = CLIENT.put(url, json={"buckets": 89, "dedupe_ms": 5})
    assert (second.status_code, second.json()) == (
        200,
        {"name": "settings", **DEFAULTS, "buckets": 89, "dedupe_ms": 5},
    )
    assert CLIENT.put(url, json=second.json()).status_code == 200
    assert CLIENT.get(url).json() == second.json()
    assert second.json() in CLIENT.get(f"{server.url}/schedules").json()["items"]
    assert_problem(CLIENT.put(url, json={}), 409, "conflict")  # another number of buckets
    assert CLIENT.delete(url).status_code == 204
    assert_problem(CLIENT.get(url), 404, "not_found")
    assert_problem(CLIENT.delete(url), 404, "not_found")


def test_schedules_are_listed_in_pages(server):
    """By name; `next` is there while more follow, and `after` takes it."""
    url = f"{server.url}/schedules"
    names = [f"paged-{number}" for number in range(5)]
    for name in reversed(names):
        CLIENT.put(f"{url}/{name}", json={})
    first = CLIENT.get(url, params={"limit": 2, "after": "paged-"}).json()
    assert [item["name"] for item in first["items"]] == names[:2]
    second = CLIENT.get(url, params={"limit": 2, "after": first["next"]}).json()
    assert [item["name"] for item in second["items"]] == names[2:4]
    rest = CLIENT.get(url, params={"after": second["next"]}).json()
    assert rest["items"][0]["name"] == names[4]
    assert "next" not in rest
    for limit in ("0", "1001", "many"):
        assert CLIENT.get(url, params={"limit": limit}).status_code == 422


@pytest.mark.parametrize(
    "settings",
    [
        {"buckets": 0},
        {"buckets": "many"},
        {"buckets": True},
        {"buckets": 10**30},
        {"max_future_ms": -1},
        {"max_lease_ms": 5},
        {"max_lease_ms": 1.5},
        {"max_body_bytes": -1},
        {"dedupe_ms": -1},
        {"dedupe_ms": None},
        {"max_attempts": 0},
        {"max_atempts": 3},
        {"name": "another"},
        [],
        "settings",
    ],
)
def test_settings_that_cannot_be_used_are_refused(server, settings):
    """Nothing is created."""
    url = f"{server.url}/schedules/refused"
    assert_problem(CLIENT.put(url, json=settings), 422, "invalid")
    assert_problem(CLIENT.get(url), 404, "not_found")


@pytest.mark.parametrize("name", ["x.dead", ".x", "a b", "a%00b", "a%2Fb", "%C3%BC", "x" * 256])
def test_names_that_cannot_be_used_are_refused(server, name):
    """They are never found either."""
    assert_problem(CLIENT.put(f"{server.url}/schedules/{name}", json={}), 422, "invalid")
    for path in ("messages", "messages/x", "counts?from=0&to=1"):
        assert_problem(CLIENT.get(f"{server.url}/schedules/{name}/{path}"), 404, "not_found")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("messages", {"items": [{"producer_group": "g", "body": 1}]}),
        ("messages", {"items": [7]}),
        ("leases", {"consumer": "c", "lease_ms": 1000, "limit": 1}),
        ("leases", {"consumer": "c", "lease_ms": 1000, "limit": 1, "wait_ms": 60_000}),
        ("leases", {"consumer": "c", "lease_ms": 1000, "items": [{"id": "x"}]}),
        ("extend", {"items": [{"id": "x", "version": 1, "consumer": "c", "in_ms": 100}]}),
        ("release", {"items": [{"id": "x", "version": 1, "consumer": "c", "in_ms": 100}]}),
        ("delete", {"items": [{"id": "x", "version": 1, "consumer": "c"}]}),
        ("delete", {"items": [{"id": "x", "producer_group": "g"}]}),
        ("move", {"items": [{"id": "x", "producer_group": "g", "in_ms": 1}]}),
    ],
)
def test_an_unknown_schedule_is_not_found(server, path, body):
    """Whatever is asked."""
    assert_problem(CLIENT.post(f"{server.url}/schedules/unknown/{path}", json=body), 404, "not_found")


def test_a_pull_of_an_unknown_schedule_leaves_no_trace(server):
    """The node stays ready, and reports its clocks."""
    body = {"consumer": "c", "lease_ms": 1000, "limit": 1, "wait_ms": 60_000}
    assert_problem(CLIENT.post(f"{server.url}/schedules/nowhere/leases", json=body), 404, "not_found")
    assert CLIENT.get(f"{server.url}/ready").status_code == 200
    assert CLIENT.get(f"{server.url}/clocks").status_code == 200


# -- create


def test_messages_are_created_with_and_without_ids(room):
    """Generated ids sort by time. Without a moment a message is available now."""
    before = time.time_ns() // 1_000_000
    answers = [room.create({"id": "mine", "at_ms": before + DAY_MS})[0], room.create({})[0], room.create({})[0]]
    assert answers[0].items() >= {"id": "mine", "status": "ok", "at_ms": before + DAY_MS}.items()
    assert answers[0]["version"] >= before // 1000 * 2**20
    assert answers[1]["id"] < answers[2]["id"]
    later = room.create({"in_ms": 50_000})[0]
    assert before + 50_000 <= later["at_ms"] <= time.time_ns() // 1_000_000 + 50_000
    found = room.get(f"/messages/{answers[1]['id']}").json()
    assert found == {
        "id": answers[1]["id"],
        "bucket": found["bucket"],
        "at_ms": answers[1]["at_ms"],
        "due_ms": answers[1]["at_ms"],
        "producer_group": "g",
        "consumer": None,
        "version": answers[1]["version"],
        "delivery_count": 0,
        "created_ms": found["created_ms"],
    }
    assert 0 <= found["bucket"] < 1024
    assert found["created_ms"] >= before


def test_a_repeated_create_names_the_version_only_to_its_producer(room):
    """The spaces of a JSON body do not matter."""
    item = {"id": "x", "producer_group": "g", "body": {"a": [1, 2]}, "in_ms": 60_000}
    first = room.post("messages", item).json()["items"][0]
    text = b'{"items": [ {"producer_group": "g",\n "id":"x", "body" :{ "a":[1 ,2]}} ]}'
    json_type = {"Content-Type": "application/json"}
    again = CLIENT.post(f"{room.url}/messages", content=text, headers=json_type)
    assert again.status_code == 422
    assert again.json()["items"][0].items() >= {"code": "already_exists", "version": first["version"]}.items()
    for other in ({"body": 2}, {"producer_group": "h"}, {"body_base64": "eyJhIjpbMSwyXX0=", "body": None}):
        changed = {**item, **other}
        if "body_base64" in other:
            del changed["body"]
        answer = room.post("messages", changed).json()["items"][0]
        assert (answer["status"], answer["code"]) == ("error", "already_exists")
        assert "version" not in answer


def test_what_exceeds_a_limit_of_the_schedule_fails_alone(server):
    """The horizon and the size of bodies are settings."""
    room = Room(server, "limits", max_future_ms=10_000, max_body_bytes=10)
    answer = room.post(
        "messages",
        {"producer_group": "g", "id": "far", "body": 1, "in_ms": 20_000},
        {"producer_group": "g", "id": "long", "body": "x" * 9},
        {"producer_group": "g", "id": "fits", "body": "x" * 8, "in_ms": 9_000},
        {"producer_group": "g", "id": "bytes", "body_base64": "AAAAAAAAAAAAAAA="},
        {"producer_group": "g", "id": "past", "body": 1, "at_ms": 0},
    )
    assert answer.status_code == 207
    assert codes(answer) == ["too_far", "body_too_large", "ok", "body_too_large", "ok"]
    assert answer.json()["items"][4]["at_ms"] == 0


MALFORMED = {
    "messages": [
        7,
        None,
        [],
        {},
        {"producer_group": "g"},
        {"body": 1},
        {"producer_group": 7, "body": 1},
        {"producer_group": "", "body": 1},
        {"producer_group": "g" * 256, "body": 1},
        {"producer_group": "g\0", "body": 1},
        {"producer_group": "g", "body": 1, "body_base64": "AA=="},
        {"producer_group": "g", "body_base64": "?"},
        {"producer_group": "g", "body_base64": 7},
        {"producer_group": "g", "body": 1, "id": ""},
        {"producer_group": "g", "body": 1, "id": 7},
        {"producer_group": "g", "body": 1, "id": "x" * 256},
        {"producer_group": "g", "body": 1, "id": "a\0b"},
        {"producer_group": "g", "body": 1, "at_ms": 1, "in_ms": 1},
        {"producer_group": "g", "body": 1, "at_ms": "tomorrow"},
        {"producer_group": "g", "body": 1, "at_ms": 1.5},
        {"producer_group": "g", "body": 1, "at_ms": -1},
        {"producer_group": "g", "body": 1, "at_ms": 10**40},
        {"producer_group": "g", "body": 1, "in_ms": 10**40},
        {"producer_group": "g", "body": 1, "in_ms": True},
    ],
    "extend": [
        7,
        {"id": "x", "version": 1, "consumer": "c"},
        {"id": "x", "version": 1, "in_ms": 100},
        {"id": "x", "consumer": "c", "in_ms": 100},
        {"version": 1, "consumer": "c", "in_ms": 100},
        {"id": "x", "version": 1, "consumer": "c", "in_ms": 100, "at_ms": 100},
        {"id": "x", "version": "1", "consumer": "c", "in_ms": 100},
        {"id": "x", "version": -1, "consumer": "c", "in_ms": 100},
        {"id": "x", "version": 2**63, "consumer": "c", "in_ms": 100},
        {"id": "x", "version": 1, "consumer": "", "in_ms": 100},
    ],
    "delete": [
        7,
        {"id": "x"},
        {"id": "x", "version": 1},
        {"id": "x", "consumer": "c"},
        {"id": "x", "version": 1, "consumer": "c", "producer_group": "g"},
        {"producer_group": "g"},
    ],
    "move": [
        7,
        {"id": "x", "producer_group": "g"},
        {"id": "x", "in_ms": 1},
        {"id": "x", "producer_group": "g", "in_ms": 1, "at_ms": 1},
        {"id": "x", "producer_group": "g", "in_ms": 1, "version": 1.5},
    ],
}
MALFORMED["release"] = MALFORMED["extend"]


@pytest.mark.parametrize("path", [*MALFORMED])
def test_a_malformed_item_fails_alone(room, path):
    """Every item has its own answer, in the order asked."""
    good = {
        "messages": {"id": "good", "producer_group": "g", "body": 1},
        "delete": {"id": "good", "producer_group": "g"},
        "move": {"id": "good", "producer_group": "g", "in_ms": 1},
    }.get(path)
    if good is None:
        version = room.create({"id": "good"})[0]["version"]
        assert room.pull()[0]["version"] == version + 1
        good = {"id": "good", "consumer": "c", "version": version + 1, "in_ms": 20_000}
    elif path != "messages":
        room.create({"id": "good"})
    bad = MALFORMED[path]
    answer = room.post(path, *bad[:3], good, *bad[3:])
    assert answer.status_code == 207
    assert codes(answer) == ["invalid"] * 3 + ["ok"] + ["invalid"] * (len(bad) - 3)
    items = answer.json()["items"]
    assert items[3]["id"] == "good"
    assert all(item["detail"] for item in items if item["status"] == "error")
    for given, item in zip([*bad[:3], good, *bad[3:]], items, strict=True):
        if isinstance(given, dict) and isinstance(given.get("id"), str):
            assert item["id"] == given["id"]
    assert room.post(path, *bad).status_code == 422


@pytest.mark.parametrize("path", ["messages", "extend", "release", "delete", "move", "leases", "put-back"])
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"items": []}', 422, "invalid"),
        (b"{}", 422, "invalid"),
        (b'{"items": {}}', 422, "invalid"),
        (b'{"items": null}', 422, "invalid"),
        (b"[]", 422, "invalid"),
        (b"", 400, "malformed"),
        (b"{", 400, "malformed"),
        (b'{"items": [{]}', 400, "malformed"),
        (b'{"items": [' + b"[" * 100_000, 400, "malformed"),
    ],
)
def test_a_body_without_items_is_refused(room, path, body, status, code):
    """Also empty items."""
    json_type = {"Content-Type": "application/json"}
    answer = CLIENT.post(f"{room.url}/{path}", content=body, headers=json_type)
    assert_problem(answer, status, code)


# -- bodies and ids


@pytest.mark.parametrize(
    "body",
    [
        None,
        True,
        0,
        1.5e300,
        2**70,
        "",
        "ü\u2028\0\n\U0001f600",
        [],
        {},
        {"a": [{"b": None}], "": " ", "ü": 0.1},
    ],
)
def test_a_json_body_comes_back_as_it_was(room, body):
    """In a lease, and for the owner."""
    room.create({"id": "x", "body": body})
    assert room.get("/messages/x", producer_group="g").json()["body"] == body
    lease = room.pull()[0]
    assert lease["body"] == body
    assert "body_base64" not in lease


def test_numbers_and_escapes_in_a_body_are_not_changed(room):
    """The text of the JSON is stored, not what some parser made of it."""
    body = b'[1.0,1e400,123456789012345678901234567890.10,"\\ud83d\\ude00\\u0041"]'
    text = b'{"items": [{"id": "x", "producer_group": "g", "body": ' + body + b"}]}"
    CLIENT.post(f"{room.url}/messages", content=text, headers={"Content-Type": "application/json"})
    assert b'"body":' + body + b"}" in room.get("/messages/x", producer_group="g").content


def test_bytes_come_back_as_base64(room):
    """A body of bytes is not JSON, whatever the bytes are."""
    room.post("messages", {"id": "x", "producer_group": "g", "body_base64": "AP8iew=="})
    lease = room.pull()[0]
    assert (lease["body_base64"], "body" in lease) == ("AP8iew==", False)


def test_a_body_that_is_not_utf8_fails_alone(room):
    """The other items are stored."""
    text = b'{"items": [{"id":"x","producer_group":"g","body":"\xff"},{"id":"y","producer_group":"g","body":"y"}]}'
    answer = CLIENT.post(f"{room.url}/messages", content=text, headers={"Content-Type": "application/json"})
    assert codes(answer) == ["invalid", "ok"]


def test_a_text_with_half_a_surrogate_pair_fails_alone(room):
    """Cut texts have one. It is JSON, but no Unicode text."""
    bodies = "a", "\ud83d", "b", "\\ud83d", ["\ude00 ]},{"]
    items = [{"id": f"m{n}", "producer_group": "g", "body": body} for n, body in enumerate(bodies)]

    def post(body: dict[str, Any]) -> httpx.Response:
        json_type = {"Content-Type": "application/json"}
        return CLIENT.post(f"{room.url}/messages", content=json.dumps(body), headers=json_type)

    answer = post({"items": items})
    assert (answer.status_code, codes(answer)) == (207, ["ok", "invalid", "ok", "ok", "invalid"])
    assert [item["id"] for item in answer.json()["items"]] == ["m0", "m1", "m2", "m3", "m4"]
    assert sorted(lease["body"] for lease in room.pull()) == ["\\ud83d", "a", "b"]
    assert_problem(post({"items": items, "more": 1}), 400, "malformed")


@pytest.mark.parametrize(
    "message_id",
    ["a/b", "/", "//x//", "a b", "ü€\U0001f600", "?#&=+%", "%2F", "\n\t", "..", ".", "x" * 255, "'\"\\;--"],
)
def test_an_id_can_have_any_character(room, message_id):
    """In a path it is URL-encoded."""
    room.create({"id": message_id, "body": message_id})
    # Clients normalise some paths, so it is sent as it is.
    connection = http.client.HTTPConnection("127.0.0.1", room.server.port)
    connection.request("GET", f"/schedules/{room.name}/messages/{quote(message_id, safe='')}?producer_group=g")
    found = json.loads(connection.getresponse().read())
    connection.close()
    assert (found["id"], found["body"]) == (message_id, message_id)
    assert room.get("/messages", after="\x01").json()["items"][0]["id"] == message_id
    assert [lease["id"] for lease in room.pull()] == [message_id]


# -- reads


def test_a_body_is_only_for_the_owner_and_the_holder(room):
    """A claim without the right is forbidden; without a claim the body is left out."""
    room.create({"id": "x", "body": "secret"})
    assert "body" not in room.get("/messages/x").json()
    assert room.get("/messages/x", producer_group="g").json()["body"] == "secret"
    assert_problem(room.get("/messages/x", producer_group="h"), 403, "forbidden")
    assert_problem(room.get("/messages/x", consumer="c", version=1), 403, "forbidden")
    version = room.pull("c")[0]["version"]
    assert room.get("/messages/x", consumer="c", version=version).json()["body"] == "secret"
    assert_problem(room.get("/messages/x", consumer="c", version=version - 1), 403, "forbidden")
    assert_problem(room.get("/messages/x", consumer="d", version=version), 403, "forbidden")
    assert_problem(room.get("/messages/y", producer_group="g"), 404, "not_found")
    assert_problem(room.get("/messages/y"), 404, "not_found")


@pytest.mark.parametrize(
    "query",
    [
        {"consumer": "c"},
        {"version": 1},
        {"consumer": "c", "version": "x"},
        {"consumer": "c", "version": "null"},
        {"consumer": "c", "version": -1},
        {"consumer": "", "version": 1},
        {"consumer": "c", "version": 1, "producer_group": "g"},
        {"producer_group": ""},
        {"producer_group": "a\0"},
    ],
)
def test_a_claim_that_is_none_is_refused(room, query):
    """Half a claim is not taken for no claim."""
    room.create({"id": "x"})
    assert_problem(room.get("/messages/x", **query), 422, "invalid")


def test_lists_have_pages(room):
    """`next` is there if more follow, and continues the list as `after`."""
    room.create(*({"id": f"m{n}", "producer_group": "ab"[n % 2]} for n in range(7)))
    room.post("leases", {"id": "m1"}, {"id": "m2"}, consumer="c", lease_ms=60_000)
    room.create({"id": "later", "in_ms": 60_000})

    def pages(**query: Any) -> list[list[str]]:
        found, more = [], {}
        while True:
            page = room.get("/messages", **query, **more).json()
            found.append([item["id"] for item in page["items"]])
            assert set(page) <= {"items", "next"}
            if "next" not in page:
                return found
            more = {"after": page["next"]}

    assert pages() == [["later", *(f"m{n}" for n in range(7))]]
    assert pages(limit=3) == [["later", "m0", "m1"], ["m2", "m3", "m4"], ["m5", "m6"]]
    assert pages(limit=4) == [["later", "m0", "m1", "m2"], ["m3", "m4", "m5", "m6"]]
    assert pages(producer_group="a", limit=3) == [["m0", "m2", "m4"], ["m6"]]
    assert pages(consumer="c") == [["m1", "m2"]]
    assert pages(consumer="nobody") == [[]]
    assert pages(state="processing") == [["m1", "m2"]]
    assert pages(state="waiting") == [["later"]]
    assert pages(state="available", producer_group="b") == [["m3", "m5"]]


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 1001},
        {"limit": "x"},
        {"state": "late"},
        {"state": "null"},
        {"after": "a\0"},
        {"consumer": "c", "producer_group": "g"},
    ],
)
def test_a_list_that_cannot_be_read_is_refused(room, query):
    """The answer says what is wrong."""
    assert_problem(room.get("/messages", **query), 422, "invalid")


def test_counts_by_state_and_step(room):
    """Steps without messages are listed, too. The range is half-open."""
    start = time.time_ns() // 1_000_000 + DAY_MS
    room.create(*({"at_ms": start + offset} for offset in (0, 1, 999, 1000, 3500, 4000)))
    assert room.get("/counts", **{"from": start, "to": start + 4000}).json() == {
        "total": 5, "waiting": 5, "processing": 0, "available": 0,
    }  # fmt: skip
    steps = room.get("/counts", **{"from": start, "to": start + 4500, "step": 1000}).json()["steps"]
    assert steps == [
        {"from": start + 1000 * n, "total": count, "waiting": count, "processing": 0}
        for n, count in enumerate([3, 1, 0, 1, 1])
    ]
    room.create({}, {})
    room.pull(limit=1, lease_ms=60_000)
    now = room.get("/counts", **{"from": 0, "to": start}).json()
    assert now == {"total": 2, "waiting": 0, "processing": 1, "available": 1}
    many = room.get("/counts", **{"from": 0, "to": 10_000, "step": 1}).json()["steps"]
    assert len(many) == 10_000
    assert_problem(room.get("/counts", **{"from": 0, "to": 10_001, "step": 1}), 422, "invalid")


@pytest.mark.parametrize(
    "query",
    [
        {"from": 0},
        {"to": 1},
        {"from": "a", "to": 1},
        {"from": -1, "to": 1},
        {"from": 2, "to": 1},
        {"from": 0, "to": 10**30},
        {"from": 0, "to": 1, "step": 0},
        {"from": 0, "to": 1, "step": "x"},
        {"from": 0, "to": 1, "step": "null"},
    ],
)
def test_counts_of_no_range_are_refused(room, query):
    """A range has a start before its end, and steps that are longer than nothing."""
    assert_problem(room.get("/counts", **query), 422, "invalid")


# -- leases


def test_chosen_messages_are_answered_one_by_one(room):
    """Those that are available are leased; 200 if all are, 207 if some are, 422 if none is."""
    (a, b, _) = room.create({"id": "a"}, {"id": "b"}, {"id": "later", "in_ms": 60_000})
    asked = [{"id": "a"}, {"id": "b", "version": 1}, {"id": "later"}, {"id": "none"}, {"id": 7}, {}]
    asked.append({"id": "b", "versoin": 1})  # not taken for an item without a version
    some = room.post("leases", *asked, consumer="c", lease_ms=60_000)
    assert some.status_code == 207
    assert codes(some) == ["ok", "stale_version", "not_available", "not_found", *["invalid"] * 3]
    lease = some.json()["items"][0]
    assert lease.items() >= {"id": "a", "version": a["version"] + 1, "delivery_count": 1, "body": 1}.items()
    all_of_them = room.post("leases", {"id": "b", "version": b["version"]}, consumer="c", lease_ms=60_000)
    assert (all_of_them.status_code, codes(all_of_them)) == (200, ["ok"])
    none = room.post("leases", {"id": "a"}, {"id": "b"}, consumer="d", lease_ms=60_000)
    assert (none.status_code, codes(none)) == (422, ["not_available"] * 2)


@pytest.mark.parametrize("lease_ms", [-1, 0, 5, 300_001, 10**30])
@pytest.mark.parametrize("asked", [{"limit": 1}, {"limit": 1, "wait_ms": 60_000}, {"items": [{"id": "x"}]}])
def test_a_lease_time_out_of_range_is_a_bad_timestamp(room, lease_ms, asked):
    """It is refused as a whole, at once."""
    room.create({"id": "x"})
    answer = room.post("leases", consumer="c", lease_ms=lease_ms, **asked)
    assert_problem(answer, 422, "bad_timestamp")


@pytest.mark.parametrize(
    "body",
    [
        {"consumer": "c", "lease_ms": 1000},
        {"consumer": "c", "limit": 1},
        {"lease_ms": 1000, "limit": 1},
        {"consumer": "", "lease_ms": 1000, "limit": 1},
        {"consumer": "c" * 256, "lease_ms": 1000, "limit": 1},
        {"consumer": "c\0", "lease_ms": 1000, "limit": 1},
        {"consumer": 7, "lease_ms": 1000, "limit": 1},
        {"consumer": "c", "lease_ms": "1000", "limit": 1},
        {"consumer": "c", "lease_ms": 1000, "limit": 0},
        {"consumer": "c", "lease_ms": 1000, "limit": 1001},
        {"consumer": "c", "lease_ms": 1000, "limit": True},
        {"consumer": "c", "lease_ms": 1000, "limit": 1, "wait_ms": -1},
        {"consumer": "c", "lease_ms": 1000, "limit": 1, "wait_ms": 60_001},
        {"consumer": "c", "lease_ms": 1000, "limit": 1, "items": [{"id": "x"}]},
        {"consumer": "c", "lease_ms": 1000, "items": [{"id": "x"}] * 10_001},
    ],
)
def test_a_lease_without_the_right_fields_is_refused(room, body):
    """Every field wrong, once."""
    assert_problem(CLIENT.post(f"{room.url}/leases", json=body), 422, "invalid")


def test_due_messages_are_leased_oldest_first(room):
    """At most `limit`, each to one consumer, with all that a consumer needs."""
    now = time.time_ns() // 1_000_000
    room.create(*({"id": f"m{n}", "at_ms": now - n} for n in range(5)), {"id": "later", "in_ms": 60_000})
    first, second, third = room.pull("c", 3), room.pull("d", 3), room.pull("e", 3)
    assert [lease["id"] for lease in first] == ["m4", "m3", "m2"]
    assert [lease["id"] for lease in second] == ["m1", "m0"]
    assert third == []
    lease = first[0]
    assert set(lease) == {
        "id", "version", "expires_at_ms", "due_at_ms", "delivery_count", "created_ms", "producer_group", "body",
    }  # fmt: skip
    assert (lease["due_at_ms"], lease["delivery_count"], lease["producer_group"]) == (now - 4, 1, "g")
    assert 0 < lease["expires_at_ms"] - now - 30_000 < 30_000


def test_a_pull_waits_for_a_message(room):
    """Until the next one is due, or until one is created."""
    answers: list[list[Any]] = []
    pulling = [
        threading.Thread(target=lambda: answers.append(room.pull("c", 1, wait_ms=60_000))) for _ in range(2)
    ]
    room.create({"id": "soon", "in_ms": 300})
    for thread in pulling:
        thread.start()
    until(lambda: answers, "the message that comes due")
    room.create({"id": "new"})
    for thread in pulling:
        thread.join()
    assert sorted(lease["id"] for answer in answers for lease in answer) == ["new", "soon"]
    assert room.pull("c", 1, wait_ms=50) == []


def test_waiting_pulls_hold_no_thread(tmp_path):
    """With one thread for each storage, more pulls than threads wait while others work."""
    with Server(tmp_path / "data", server_threads=1, server_drain_timeout_ms=20_000) as server:
        room = Room(server, "one")
        answers: list[list[Any]] = []
        pulling = [
            threading.Thread(target=lambda n=n: answers.append(room.pull(f"c{n}", 1, wait_ms=60_000)))
            for n in range(20)
        ]
        for thread in pulling:
            thread.start()
        until(lambda: open_requests(server) == 21, "the pulls that wait")
        room.create(*({} for _ in range(5)))
        until(lambda: len(answers) == 5, "the pulls that got a message")
        # A node that stops ends the others, without leases.
        assert server.stop() == 0
        for thread in pulling:
            thread.join()
        assert sorted(map(len, answers)) == [0] * 15 + [1] * 5


def test_a_pull_whose_client_is_gone_takes_no_message(room):
    """The wait ends with the connection."""
    for _ in range(5):
        connection = http.client.HTTPConnection("127.0.0.1", room.server.port)
        body = json.dumps({"consumer": "gone", "lease_ms": 60_000, "limit": 1, "wait_ms": 60_000})
        connection.request("POST", f"/schedules/{room.name}/leases", body, {"Content-Type": "application/json"})
        until(lambda: open_requests(room.server) == 2, "the pull that waits")
        connection.close()
        until(lambda: open_requests(room.server) == 1, "the end of the wait")
    room.create({"id": "x"})
    assert [lease["id"] for lease in room.pull("c", 1, wait_ms=10_000)] == ["x"]


def test_leases_of_a_client_that_is_gone_are_given_back(tmp_path):
    """The client left while the database was slow. The message is available at once, as if never delivered."""
    env = {"STRANDLINE_TEST_FAILPOINT": "schedule.leased:stop"}
    with Server(tmp_path / "data", env=env, logs_level="warning") as server:
        room = Room(server, "slow")
        room.create({"id": "x"})
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        body = json.dumps({"consumer": "gone", "lease_ms": 60_000, "limit": 1})
        connection.request("POST", f"/schedules/{room.name}/leases", body, {"Content-Type": "application/json"})
        until(lambda: is_stopped(server.pid), "the pause between the lease and its delivery")
        connection.close()
        server.resume()
        (lease,) = room.pull("c", 1, wait_ms=20_000)
        assert (lease["id"], lease["delivery_count"]) == ("x", 1)


# -- what holders and owners do


def test_a_holder_extends_releases_and_deletes(room):
    """Each change raises the version, which the next one needs."""
    room.create({"id": "x"})
    lease = room.pull()[0]
    holder = {"id": "x", "consumer": "c"}
    extended = room.post("extend", {**holder, "version": lease["version"], "in_ms": 100_000}).json()["items"][0]
    assert extended["version"] == lease["version"] + 1
    assert extended["at_ms"] > lease["expires_at_ms"]
    released = room.post("release", {**holder, "version": extended["version"], "in_ms": 100}).json()["items"][0]
    assert room.get("/messages/x").json()["consumer"] is None
    again = room.pull(wait_ms=60_000)[0]
    assert again["due_at_ms"] == released["at_ms"]
    assert (again["version"], again["delivery_count"]) == (released["version"] + 1, 2)
    deleted = room.post("delete", {**holder, "version": again["version"]})
    assert (deleted.status_code, codes(deleted)) == (200, ["ok"])
    repeated = room.post("delete", {**holder, "version": again["version"]})
    assert (repeated.status_code, codes(repeated)) == (200, ["already_deleted"])
    assert repeated.json()["items"][0]["status"] == "ok"
    assert_problem(room.get("/messages/x"), 404, "not_found")


def without_moment(item: dict[str, Any]) -> dict[str, Any]:
    """The item of a delete, which has no moment."""
    return {name: value for name, value in item.items() if name != "in_ms"}


def test_the_first_broken_precondition_of_a_holder_is_named(room):
    """In the order: existence, holder, lease, version, moment."""
    room.create({"id": "x"}, {"id": "short"})
    (short,) = room.post("leases", {"id": "short"}, consumer="c", lease_ms=6).json()["items"]
    (lease,) = room.post("leases", {"id": "x"}, consumer="c", lease_ms=60_000).json()["items"]
    until(lambda: room.get("/messages", state="available").json()["items"], "the end of the short lease")
    asked = [
        {"id": "none", "consumer": "d", "version": 1, "in_ms": 1},
        {"id": "x", "consumer": "d", "version": 1, "in_ms": 1},
        {"id": "short", "consumer": "c", "version": 1, "in_ms": 1},
        {"id": "x", "consumer": "c", "version": 1, "in_ms": 1},
        {"id": "x", "consumer": "c", "version": lease["version"], "in_ms": 1},
    ]
    expected = ["not_found", "not_holder", "lease_expired", "stale_version", "bad_timestamp"]
    for path in ("extend", "release"):
        answer = room.post(path, *asked)
        assert (answer.status_code, codes(answer)) == (422, expected)
    assert codes(room.post("delete", *map(without_moment, asked[:4]))) == expected[:4]
    far = {"id": "x", "consumer": "c", "version": lease["version"]}
    assert codes(room.post("extend", {**far, "in_ms": 300_001})) == ["bad_timestamp"]
    assert codes(room.post("release", {**far, "in_ms": 366 * DAY_MS})) == ["too_far"]
    assert short["version"] < lease["version"] + 2**20


def test_an_owner_moves_and_deletes(room):
    """Not while a lease is active, and only with the newest version if it names one."""
    room.create({"id": "x", "in_ms": 60_000}, {"id": "held"})
    room.pull()
    version = room.get("/messages/x").json()["version"]
    asked = [
        {"id": "none", "producer_group": "g", "in_ms": 1},
        {"id": "x", "producer_group": "h", "in_ms": 1},
        {"id": "held", "producer_group": "g", "version": 1, "in_ms": 1},
        {"id": "x", "producer_group": "g", "version": 1, "in_ms": 1},
        {"id": "x", "producer_group": "g", "version": version, "in_ms": 366 * DAY_MS},
    ]
    expected = ["not_found", "not_owner", "lease_active", "stale_version", "too_far"]
    assert codes(room.post("move", *asked)) == expected
    assert codes(room.post("delete", *map(without_moment, asked[:4]))) == expected[:4]
    moved = room.post("move", {"id": "x", "producer_group": "g", "version": version, "at_ms": 0})
    assert (moved.status_code, moved.json()["items"][0]["at_ms"]) == (200, 0)
    assert moved.json()["items"][0]["version"] == version + 1
    assert [lease["id"] for lease in room.pull("d")] == ["x"]
    room.create({"id": "y"})
    for code in ("ok", "already_deleted"):
        assert codes(room.post("delete", {"id": "y", "producer_group": "g"})) == [code]


def test_dead_messages_are_looked_at_and_put_back(server):
    """After `max_attempts` deliveries a message is dead; its id stays taken."""
    room = Room(server, "attempts", max_attempts=1)
    room.create({"id": "x", "body": "x"}, {"id": "y"})
    dead = Room.__new__(Room)
    dead.server, dead.name, dead.url = server, "attempts.dead", f"{room.url}.dead"

    def die() -> None:
        room.pull(lease_ms=6)
        until(lambda: not room.pull(lease_ms=6) and len(dead.get("/messages").json()["items"]) == 2, "two dead")

    die()
    assert room.get("/messages").json() == {"items": []}
    assert dead.get("/messages/x", producer_group="g").json()["body"] == "x"
    assert dead.get("/counts", **{"from": 0, "to": 2**50}).json()["total"] == 2
    assert room.get("/counts", **{"from": 0, "to": 2**50}).json()["total"] == 0
    assert codes(room.post("messages", {"id": "x", "producer_group": "g", "body": 2})) == ["already_exists"]
    for refused in (
        dead.post("messages", {"producer_group": "g", "body": 1}),
        dead.post("leases", consumer="c", lease_ms=1000, limit=1, wait_ms=60_000),
        dead.post("leases", {"id": "x"}, consumer="c", lease_ms=1000),
        dead.post("extend", {"id": "x", "consumer": "c", "version": 1, "in_ms": 100}),
        dead.post("move", {"id": "x", "producer_group": "g", "in_ms": 100}),
        room.post("put-back", {"id": "x", "producer_group": "g"}),
        *(dead.post(path, {}) for path in ("messages", "extend", "move")),  # also if all items are malformed
        room.post("put-back", {}),
    ):
        assert_problem(refused, 409, "conflict")
    bad = [7, {"id": "x"}, *({"id": "x", "producer_group": "g", moment: 60_000} for moment in ("in_ms", "at_ms"))]
    assert codes(dead.post("put-back", *bad)) == ["invalid"] * 4  # they are put back now, not later
    back = dead.post(
        "put-back", {"id": "x", "producer_group": "g"}, {"id": "y", "producer_group": "h"}, {"id": "z"}
    )
    assert (back.status_code, codes(back)) == (207, ["ok", "not_owner", "invalid"])
    assert [(lease["id"], lease["delivery_count"]) for lease in room.pull()] == [("x", 1)]
    assert codes(dead.post("delete", {"id": "y", "producer_group": "g"})) == ["ok"]
    assert dead.get("/messages").json() == {"items": []}


# -- the node


def test_clocks_are_reported(server):
    """How far the node's clock is from the database's, and since when that is known."""
    answer = CLIENT.get(f"{server.url}/clocks")
    assert answer.status_code == 200, answer.text
    report = answer.json()
    assert set(report) == {"node", "peers", "clients", "degraded"}
    assert set(report["node"]) == {"name", "offset_ms", "error_ms", "measured_ms"}
    assert (report["degraded"], report["peers"]) == (None, [])
    assert abs(report["node"]["offset_ms"]) < 500


def test_leases_are_counted_in_the_metrics(server):
    """By schedule: given, expired, late, and messages that became dead."""
    room = Room(server, "counted", max_attempts=2)
    room.create({"id": "x", "in_ms": -1_000})
    for _ in range(2):
        until(lambda: room.pull(lease_ms=500), "the lease")
    until(lambda: not room.pull() and not room.get("/messages").json()["items"], "the death of the message")
    text = CLIENT.get(f"{server.url}/metrics").text
    for name, count in {"leased": 2, "expired_leases": 1, "dead": 1}.items():
        assert f'strandline_schedule_{name}_total{{schedule="counted"}} {count}.0' in text
    late = float(text.split('strandline_schedule_late_total{schedule="counted"} ')[1].split()[0])
    assert late >= 1  # the message was due for a second before the first pull


def test_leases_of_chosen_messages_are_counted_in_the_metrics(server):
    """Like other leases: given, after a lease that had expired, and messages that became dead instead."""
    room = Room(server, "counted-choice", max_attempts=2)
    room.create({"id": "x"}, {"id": "later", "in_ms": 60_000})

    def counted(name: str) -> float:
        text = CLIENT.get(f"{server.url}/metrics").text
        return float(text.split(f'strandline_schedule_{name}_total{{schedule="counted-choice"}} ')[1].split()[0])

    for expected in (["ok", "not_available"], ["ok", "not_available"], ["not_available"] * 2):
        assert codes(room.post("leases", {"id": "x"}, {"id": "later"}, consumer="c", lease_ms=6)) == expected
        until(lambda: room.get("/messages", state="processing").json()["items"] == [], "the end of the lease")
    assert [counted(name) for name in ("leased", "expired_leases", "dead")] == [2, 1, 1]


def test_due_messages_and_clocks_are_in_the_metrics(server):
    """Due messages by schedule, without those that wait or are leased; the clock of every node."""
    room, idle = Room(server, "backlog"), Room(server, "idle")
    room.create({"id": "leased"}, {"id": "waiting", "in_ms": 60_000}, *({"at_ms": 1} for _ in range(3)))
    assert len(room.pull(limit=1)) == 1

    def shown(name: str) -> list[str]:
        lines = CLIENT.get(f"{server.url}/metrics").text.splitlines()
        return [line for line in lines if line.startswith(f"strandline_schedule_{name}{{")]

    # A measurement can begin between the creations of the two schedules.
    due = {"backlog": 3.0, "idle": 0.0}
    expected = {f'strandline_schedule_due{{schedule="{name}"}} {count}' for name, count in due.items()}
    until(lambda: expected <= {*shown("due")}, "the counts of due messages")
    assert abs(float(shown("node_clock_offset_seconds")[0].split()[-1])) < 0.5
    assert CLIENT.delete(idle.url).status_code == httpx.codes.NO_CONTENT
    until(lambda: "idle" not in "".join(shown("due")), "the end of the gauge of a deleted schedule")


class DegradedServer(Server):
    """It is never ready, so its start waits until it is alive."""

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=2).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


def test_a_degraded_node_says_so_and_gives_no_leases(tmp_path, postgres):
    """Its clock is 2 s ahead of the database's. It still creates, extends and deletes; the other node goes on."""
    flags = {"schedule_url": postgres.url(postgres.new_database()), "logs_level": "error"}
    ahead = DegradedServer(tmp_path / "ahead", env={"STRANDLINE_TEST_CLOCK": "+2000,1"}, **flags)
    with Server(tmp_path / "right", **flags) as right, ahead:
        room, there = Room(right, "shared"), Room.__new__(Room)
        there.url = f"{ahead.url}/schedules/shared"
        room.create({"id": "x"})
        (lease,) = room.pull(lease_ms=60_000)
        holder = {"id": "x", "consumer": "c", "in_ms": 60_000}
        assert codes(there.post("messages", {"id": "y", "producer_group": "g", "body": 1})) == ["ok"]
        for asked in ({"limit": 1}, {"items": [{"id": "y"}]}):
            refused = there.post("leases", consumer="d", lease_ms=60_000, **asked)
            assert_problem(refused, 503, "unavailable")
            assert "gives no leases: the clock of this node is" in refused.json()["detail"]
            assert refused.headers["Retry-After"] == "1"
        assert CLIENT.get(f"{ahead.url}/ready").status_code == 503
        report = CLIENT.get(f"{ahead.url}/clocks").json()
        assert "the clock of this node is" in report["degraded"]
        assert 1_000 < report["node"]["offset_ms"] < 3_000
        assert codes(there.post("extend", {**holder, "version": lease["version"]})) == ["ok"]
        deleted = {"id": "x", "consumer": "c", "version": lease["version"] + 1}
        assert codes(there.post("delete", deleted)) == ["ok"]
        assert [one["id"] for one in room.pull(wait_ms=60_000)] == ["y"]
        assert CLIENT.get(f"{right.url}/ready").status_code == 200
        assert CLIENT.get(f"{right.url}/clocks").json()["degraded"] is None


def test_all_routes_are_in_the_openapi_document(server):
    """A client can be generated from it."""
    paths = CLIENT.get(f"{server.url}/openapi.json").json()["paths"]
    one = "/schedules/{schedule}"
    expected = {
        "/schedules": {"get"},
        one: {"get", "put", "delete"},
        "/clocks": {"get"},
        f"{one}/messages": {"get", "post"},
        f"{one}/messages/{{message_id}}": {"get"},
        f"{one}/counts": {"get"},
        f"{one}/subscribe": {"get"},
        f"{one}/relay-dead-letters": {"get"},
        **{f"{one}/{path}": {"post"} for path in ("leases", "extend", "release", "delete", "move", "put-back")},
    }
    found = {path: {*methods} for path, methods in paths.items() if path.startswith(("/schedules", "/clocks"))}
    assert found == expected


def test_other_methods_are_not_allowed(room):
    """The answer names those that are."""
    answer = CLIENT.delete(f"{room.url}/messages")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD, POST")


def test_a_request_of_a_page_of_another_origin_is_refused(room):
    """No page can make a browser create or lease messages."""
    answer = CLIENT.post(f"{room.url}/leases", json={}, headers={"Origin": "http://example.com"})
    assert_problem(answer, 403, "forbidden")
