"""Feeds over plain HTTP, in JSON and MessagePack: what is answered, and what is refused."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import httpx
import msgspec
import pytest

from services import CLIENT, Server, until

_numbers = itertools.count(1)
LARGEST = 2**63 - 1
MSGPACK = "application/msgpack"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("feeds") / "data", logs_level="warning") as started:
        yield started
        assert '"level": "error"' not in started.log_file.read_text()


@pytest.fixture
def url(server: Server) -> str:
    """A feed that exists and is empty."""
    feed = f"{server.url}/feeds/user:{next(_numbers)}"
    assert CLIENT.put(feed, json={"entries": []}).status_code == 204
    return feed


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def append(server: Server, entry: dict[str, Any], *feeds: str, **more: Any) -> httpx.Response:
    return CLIENT.post(f"{server.url}/feed-entries", json={"entry": entry, "feeds": feeds, **more})


def read(url: str, **query: Any) -> list[dict[str, Any]]:
    answer = CLIENT.get(url, params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()["entries"]


def packed(method: str, url: str, body: Any = None, *, accept: str = MSGPACK) -> httpx.Response:
    content = None if body is None else msgspec.msgpack.encode(body)
    return CLIENT.request(method, url, content=content, headers={"Content-Type": MSGPACK, "Accept": accept})


def test_ids_go_out_as_texts_and_come_in_as_texts_or_numbers(server, url):
    """No JSON reader loses a digit."""
    assert append(server, {"id": LARGEST}, name_of(url)).json() == {"accepted": 1}
    assert append(server, {"id": str(LARGEST - 1), "metadata": "AP8="}, name_of(url)).json() == {"accepted": 1}
    assert append(server, {"id": -(2**63), "metadata": ""}, name_of(url)).json() == {"accepted": 1}
    expected = [
        {"id": "9223372036854775807"},
        {"id": "9223372036854775806", "metadata": "AP8="},
        {"id": "-9223372036854775808", "metadata": ""},
    ]
    assert read(url) == expected
    assert read(url, since=LARGEST - 2) == expected[:2]
    assert read(url, offset=1, length=1) == expected[1:2]


def test_a_missing_feed_is_404_with_its_own_code(server):
    answer = CLIENT.get(f"{server.url}/feeds/nobody")
    assert (answer.status_code, answer.json()["code"]) == (404, "miss")
    assert CLIENT.get(f"{server.url}/feeds/nobody?since=5").json()["code"] == "miss"


def test_several_feeds_in_one_request(server, url):
    append(server, {"id": 1, "metadata": "eA=="}, name_of(url))
    asked = {"feeds": [name_of(url), "nobody", name_of(url)], "offset": 0, "length": 5}
    assert CLIENT.post(f"{server.url}/feeds/get", json=asked).json() == {
        "feeds": [
            {"name": name_of(url), "status": "hit", "entries": [{"id": "1", "metadata": "eA=="}]},
            {"name": "nobody", "status": "miss"},
        ]
    }


def test_merge_unmerge_delete_and_drop(server, url):
    entries = {"entries": [{"id": "1"}, {"id": 2}]}
    assert CLIENT.post(f"{url}/merge", json=entries).json() == {"accepted": 1}
    assert [entry["id"] for entry in read(url)] == ["2", "1"]
    assert CLIENT.post(f"{url}/unmerge", json={"entries": [{"id": 2}]}).json() == {"accepted": 1}
    deletion = {"id": "1", "feeds": [name_of(url), "nobody"]}
    assert CLIENT.post(f"{server.url}/feed-entries/delete", json=deletion).json() == {"accepted": 1}
    assert read(url) == []
    assert CLIENT.delete(url).status_code == 204
    assert CLIENT.get(url).status_code == 404
    assert CLIENT.post(f"{url}/merge", json=entries).json() == {"accepted": 0}


def test_a_feed_may_have_the_name_of_a_route(server):
    url = f"{server.url}/feeds/get"
    assert CLIENT.put(url, json={"entries": [{"id": 1}]}).status_code == 204
    assert read(url) == [{"id": "1"}]
    assert CLIENT.post(f"{url}/merge", json={"entries": [{"id": 2}]}).json() == {"accepted": 1}
    assert CLIENT.delete(url).status_code == 204
    assert CLIENT.get(url).status_code == 404
    assert CLIENT.patch(url).status_code == 405


def test_every_write_takes_an_operation_time(server, url):
    """As milliseconds, or exactly, both as a text or a number."""
    times = [int(CLIENT.post(f"{server.url}/feed-times").json()["operation_time"]) for _ in range(4)]
    append(server, {"id": 5}, name_of(url), operation_time=str(times[3]))
    assert CLIENT.put(url, json={"entries": [{"id": 1}], "operation_time": times[1]}).status_code == 204
    assert [entry["id"] for entry in read(url)] == ["5", "1"]
    for milliseconds in (times[0] >> 20, str(times[0] >> 20)):
        answer = CLIENT.put(url, json={"entries": [{"id": 2}], "operation_ms": milliseconds})
        assert answer.status_code == 204
    assert [entry["id"] for entry in read(url)] == ["5", "1"]
    CLIENT.delete(url, params={"operation_time": times[0]})
    CLIENT.delete(url, params={"operation_ms": times[0] >> 20})
    assert [entry["id"] for entry in read(url)] == ["5", "1"]
    for act in ("unmerge", "merge"):
        answer = CLIENT.post(f"{url}/{act}", json={"entries": [{"id": 5}], "operation_time": times[2]})
        assert answer.json() == {"accepted": 1}
    assert [entry["id"] for entry in read(url)] == ["5", "1"]
    CLIENT.delete(url, params={"operation_time": times[3]})
    assert CLIENT.get(url).status_code == 404


# -- MessagePack


def test_the_same_routes_speak_messagepack(server, url):
    """Ids are integers, metadata are binary; texts are accepted as ids, too."""
    name = name_of(url)
    entries = [{"id": LARGEST, "metadata": b"\x00\xff"}, {"id": "-5"}, {"id": 7, "metadata": b""}]
    assert packed("PUT", url, {"entries": entries}).status_code == 204
    expected = [{"id": LARGEST, "metadata": b"\x00\xff"}, {"id": 7, "metadata": b""}, {"id": -5}]
    answer = packed("GET", url)
    assert answer.headers["content-type"] == MSGPACK
    assert msgspec.msgpack.decode(answer.content) == {"entries": expected}
    answer = packed("POST", f"{server.url}/feeds/get", {"feeds": [name, "nobody"], "length": 1})
    assert msgspec.msgpack.decode(answer.content) == {
        "feeds": [
            {"name": name, "status": "hit", "entries": expected[:1]},
            {"name": "nobody", "status": "miss"},
        ]
    }
    for path, body in (
        (f"{server.url}/feed-entries", {"entry": {"id": 8}, "feeds": [name]}),
        (f"{server.url}/feed-entries/delete", {"id": 8, "feeds": [name]}),
        (f"{url}/merge", {"entries": [{"id": 9}]}),
        (f"{url}/unmerge", {"entries": [{"id": 9}]}),
    ):
        answer = packed("POST", path, body)
        assert msgspec.msgpack.decode(answer.content) == {"accepted": 1}, path


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("application/json", "application/json"),
        ("*/*", "application/json"),
        ("application/msgpack, application/json", "application/json"),
        ("application/msgpack, application/json;q=0.5", MSGPACK),
        ("application/msgpack;q=0.1, */*;q=0.0", MSGPACK),
        ("Application/MsgPack; q=1", MSGPACK),
        ("application/msgpack;q=0", "application/json"),
        ("application/msgpack;q=x", "application/json"),
        ("application/msgpack;q=0.5, */*", "application/json"),
        ("application/msgpack, */*", MSGPACK),
        ("application/msgpack, application/*", MSGPACK),
        ("application/*;q=0.5, application/json;q=0.1", MSGPACK),
        ("text/html", "application/json"),
    ],
)
def test_accept_decides_the_form_of_the_answer(server, url, accept, form):
    """Whatever the form of the request is."""
    assert packed("GET", url, accept=accept).headers["content-type"] == form
    body = {"entry": {"id": 1}, "feeds": []}
    answer = packed("POST", f"{server.url}/feed-entries", body, accept=accept)
    assert answer.headers["content-type"] == form
    answer = CLIENT.post(f"{server.url}/feed-entries", json=body, headers={"Accept": accept})
    assert answer.headers["content-type"] == form


def test_errors_are_problems_also_for_messagepack(server, url):
    for answer, status in (
        (packed("PUT", url, {"entries": [{"id": 1, "colour": "red"}]}), 422),
        (packed("PUT", url, {"entries": [{"id": 2**63}]}), 422),
        (packed("GET", f"{server.url}/feeds/nobody"), 404),
        (CLIENT.put(url, content=b"\xc1", headers={"Content-Type": MSGPACK}), 400),
        (CLIENT.put(url, content=b"{}", headers={"Content-Type": "text/plain"}), 415),
        (CLIENT.post(f"{server.url}/event-types", content=b"\x80", headers={"Content-Type": MSGPACK}), 415),
    ):
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


# -- refusals


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"entries": [{}]},
        {"entries": [{"id": 2**63}]},
        {"entries": [{"id": str(2**63)}]},
        {"entries": [{"id": -(2**63) - 1}]},
        {"entries": [{"id": 2**70}]},
        {"entries": [{"id": 1.5}]},
        {"entries": [{"id": "1.5"}]},
        {"entries": [{"id": ""}]},
        {"entries": [{"id": " 1"}]},
        {"entries": [{"id": "٣"}]},
        {"entries": [{"id": None}]},
        {"entries": [{"id": True}]},
        {"entries": [{"id": 1, "metadata": "not base64!"}]},
        {"entries": [{"id": 1, "metadata": base64.b64encode(b"x" * 65_537).decode()}]},
        {"entries": [{"id": 1, "extra": 1}]},
        {"entries": [], "extra": 1},
        {"entries": [{"id": n} for n in range(2001)]},
        {"entries": [], "operation_ms": -1},
        {"entries": [], "operation_ms": 2**43},
        {"entries": [], "operation_ms": str(2**43)},
        {"entries": [], "operation_time": 2**63},
        {"entries": [], "operation_time": "-1"},
        {"entries": [], "operation_time": "x"},
        {"entries": [], "operation_time": 2**60, "operation_ms": 5},
        {"entries": [], "operation_ms": 1},
    ],
    ids=lambda body: json.dumps(body)[:60],
)
def test_a_bad_body_is_422_and_changes_nothing(url, body):
    for answer in (CLIENT.put(url, json=body), CLIENT.post(f"{url}/merge", json=body)):
        assert answer.status_code == 422, answer.text
        assert answer.json()["code"] == "invalid"
    assert read(url) == []


def test_an_integer_of_5000_digits_is_422(url):
    """It is JSON, but no id. What is no JSON is 400."""
    for digits, status in (("9" * 5000, 422), ("x", 400)):
        body = f'{{"entries": [{{"id": {digits}}}]}}'
        answer = CLIENT.put(url, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize("act", ["merge", "unmerge"])
def test_entries_are_checked_in_the_same_way(url, act):
    """Whether their metadata are used or not."""
    large = base64.b64encode(b"x" * 65_537).decode()
    answer = CLIENT.post(f"{url}/{act}", json={"entries": [{"id": 1, "metadata": large}]})
    assert answer.status_code == 422
    assert "at most 65536" in answer.json()["detail"]


@pytest.mark.parametrize("name", ["a b", "a%2Fb", "%C3%A4", "x" * 256, "a%0A", "~"])
def test_a_bad_name_is_422(server, name):
    url = f"{server.url}/feeds/{name}"
    assert CLIENT.get(url).status_code == 422
    assert CLIENT.put(url, json={"entries": []}).status_code == 422
    assert CLIENT.delete(url).status_code == 422
    assert CLIENT.post(f"{server.url}/feeds/get", json={"feeds": [unquote(name)]}).status_code == 422


def test_bad_queries_are_422(url):
    for query in (
        "offset=-1", "length=-1", "length=x", "since=x", f"since={2**63}", "since=1&offset=2", "since=1e3",
        f"length={2**31}", "since=9007199254740993.0", "length=1e1", "offset=0.0", "length=%2B1", "offset=",
    ):  # fmt: skip
        assert CLIENT.get(f"{url}?{query}").status_code == 422, query
    for query in (
        "operation_ms=x", "operation_ms=1795133099058.0", "operation_time=x", "operation_time=1e18",
        "operation_ms=1&operation_time=1",
    ):  # fmt: skip
        assert CLIENT.delete(f"{url}?{query}").status_code == 422, query
    assert read(url) == []


def test_more_than_10_000_feeds_are_422(server, url):
    names = [f"f{number}" for number in range(10_001)]
    assert append(server, {"id": 1}, *names).status_code == 422
    assert append(server, {"id": 1}, *names[:9_999], name_of(url), name_of(url)).json() == {"accepted": 1}
    assert CLIENT.post(f"{server.url}/feeds/get", json={"feeds": names}).status_code == 422


def test_a_read_of_more_than_200_000_entries_is_422(server):
    asked = {"feeds": [f"f{number}" for number in range(10_000)]}
    assert CLIENT.post(f"{server.url}/feeds/get", json={**asked, "length": 20}).status_code == 200
    answer = CLIENT.post(f"{server.url}/feeds/get", json={**asked, "length": 800})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert "8000000 entries" in answer.json()["detail"]


def test_old_operations_are_dead_letters(server, url):
    answer = append(server, {"id": 3, "metadata": "eA=="}, name_of(url), operation_ms=1_000_000)
    assert answer.status_code == 422
    assert "dead letter" in answer.json()["detail"]
    letters = CLIENT.get(f"{server.url}/feed-dead-letters", params={"limit": 1000}).json()["items"]
    assert letters[-1]["operation"] == {
        "operation": "append",
        "operation_time": str(1_000_000 << 20),
        "feeds": [name_of(url)],
        "entries": [{"id": "3", "metadata": "eA=="}],
    }
    after = {"after": letters[-1]["number"]}
    assert CLIENT.get(f"{server.url}/feed-dead-letters", params=after).json() == {"items": []}


def test_writes_are_events_of_the_log_and_metrics_count_them(server, url):
    """The recorded operations are an ordinary event type."""
    append(server, {"id": 2**53 + 1}, name_of(url))
    answer = CLIENT.get(
        f"{server.url}/event-types/feeds.operations/events",
        params={"batch_limit": 1000, "stream_timeout": 1, "batch_flush_timeout": 1},
        headers={"X-Nakadi-Cursors": json.dumps([{"partition": "0", "offset": "BEGIN"}])},
    )
    events = [event for line in answer.text.splitlines() for event in json.loads(line).get("events", [])]
    own = [event for event in events if event["feeds"] == [name_of(url)]]
    assert [(event["operation"], event.get("entries")) for event in own] == [
        ("set", None),
        ("append", [{"id": str(2**53 + 1)}]),
    ]
    metrics = CLIENT.get(f"{server.url}/metrics").text
    assert 'strandline_feed_operations_total{operation="append"}' in metrics
    assert 'strandline_feed_writes_total{operation="append"}' in metrics


def test_a_node_whose_store_is_gone_is_ready_when_it_is_restored(tmp_path):
    """Although nobody calls a route of feeds."""
    with Server(tmp_path / "data") as node:
        CLIENT.put(f"{node.url}/feeds/ada", json={"entries": [{"id": 1}]})
    for file in (tmp_path / "data").glob("feeds.db*"):
        file.unlink()
    with Server(tmp_path / "data") as node:
        until(lambda: CLIENT.get(f"{node.url}/ready").status_code == 200, "the replay")
        assert read(f"{node.url}/feeds/ada") == [{"id": "1"}]


def test_the_description_names_both_media_types(server):
    paths = CLIENT.get(f"{server.url}/openapi.json").json()["paths"]
    body = paths["/feed-entries"]["post"]["requestBody"]["content"]
    assert {*body} == {"application/json", MSGPACK}
    assert MSGPACK in paths["/feeds/{feed}"]["get"]["responses"]["200"]["content"]
