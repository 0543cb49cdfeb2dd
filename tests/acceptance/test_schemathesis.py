"""Requests generated from the node's OpenAPI document, with all checks of Schemathesis on."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import schemathesis
from schemathesis import Case, Config
from schemathesis.core.parameters import ParameterLocation
from schemathesis.filters import HasAPIOperation
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from services import CLIENT, Server
from strandline.server import app, openapi
from strandline.server.stream_encoders import JSON_STREAM

ENDPOINTS = app.endpoints()
# Encoded and decoded, as a client gets it.
DOCUMENT = msgspec.json.decode(msgspec.json.encode(openapi.document(ENDPOINTS)))
#: The existing event types, one of every kind.
KNOWN = {
    "plain": {"partitions": 2},
    "keyed": {"partitions": 2, "partition_strategy": "hash", "partition_key_fields": ["key"]},
    "changes": {"category": "data"},
    "facts": {"category": "business", "schema": {"schema": '{"properties": {"n": {"type": "integer"}}}'}},
}
BATCH = jsonschema_rs.validator_for(
    {"$ref": "#/components/schemas/StreamBatch", "components": DOCUMENT["components"]}
)
STREAM = "/event-types/{name}/events"
LEASES = "/schedules/{schedule}/leases"


def _about_known(document: dict[str, Any]) -> dict[str, Any]:
    """The document restricted to existing event types and offsets, so that requests get past the lookup."""
    bound = deepcopy(document)
    types = bound["components"]["schemas"]
    types["EventType"]["properties"]["name"] = {"enum": [*KNOWN]}
    # A stream that opens lasts a second, so the cursors of streams stay mostly invalid.
    nowhere = deepcopy(types["CursorText"])
    types["CursorText"]["properties"]["partition"] = {"enum": ["0", "1", "2", None]}
    types["CursorText"]["properties"]["offset"] = {"enum": ["BEGIN", "001-0001--1", "0", "001-0001-0", "9", None]}
    for operations in bound["paths"].values():
        for operation in operations.values():
            for parameter in operation["parameters"]:
                if parameter["name"] == "name":
                    parameter["schema"] = {"enum": [*KNOWN]}
                if parameter["name"] == "schedule":
                    parameter["schema"] = {"enum": ["known", "known.dead"]}
                if parameter["name"] == "topic":
                    parameter["schema"] = {"enum": ["histories"]}
                if parameter["name"] == "X-Nakadi-Cursors":
                    parameter["content"]["application/json"]["schema"]["items"] = nowhere
    return bound


#: Rules that JSON Schema cannot express: the status of a request that matches the schema but breaks a rule.
BEYOND_SCHEMA = {
    # The partition limit is a setting; the schema's text must compile; hash needs key fields.
    "POST /event-types": ["422"],
    # The same, and changes must be allowed for the existing definition.
    "PUT /event-types/{name}": ["422"],
    "POST /event-types/{name}/schemas": ["422"],
    # Events must match the event type's own schema.
    "POST /event-types/{name}/events": ["422"],
    # Limits must not contradict each other; cursors must be available, one for a partition.
    "GET /event-types/{name}/events": ["412", "422"],
    "GET /event-types/{name}/partitions": ["422"],
    "GET /event-types/{name}/partitions/{partition}": ["422"],
    "POST /event-types/{name}/cursor-distances": ["422"],
    "POST /event-types/{name}/shifted-cursors": ["422"],
    "POST /event-types/{name}/cursors-lag": ["422"],
    # Event types and partitions must exist; streams and limits as above; a commit needs a stream id.
    "POST /subscriptions": ["422"],
    "PUT /subscriptions/{subscription_id}": ["422"],
    "POST /subscriptions/{subscription_id}/cursors": ["400", "422"],
    "PATCH /subscriptions/{subscription_id}/cursors": ["422"],
    "GET /subscriptions/{subscription_id}/events": ["422"],
    "POST /subscriptions/{subscription_id}/events": ["422"],
    # The storage must exist; partitions only grow, up to a setting; a storage needs the settings of its type.
    "POST /event-types/{name}/timelines": ["422"],
    "PUT /event-types/{name}/partition-count": ["422"],
    "POST /storages": ["422"],
    # Not every text with the format of an hour is valid; spans end after they start, and some have a maximum.
    "GET /archive/periods": ["422"],
    "GET /archive/{name}/hours": ["422"],
    "GET /archive/{name}/hours/{hour}": ["422"],
    "POST /archive/{name}/hours/{hour}/verify": ["422"],
    # Names do not end with `.dead`, and settings have ranges; a lease time is within the schedule's limit.
    "PUT /schedules/{schedule}": ["422"],
    "POST /schedules/{schedule}/leases": ["422"],
    # Items are answered one by one: 422 if none succeeded.
    **{
        f"POST /schedules/{{schedule}}/{path}": ["422"]
        for path in ("messages", "extend", "release", "delete", "move", "put-back")
    },
    # A claim or a list is by group or by consumer; a range starts before it ends.
    "GET /schedules/{schedule}/messages/{message_id}": ["422"],
    "GET /schedules/{schedule}/messages": ["422"],
    "GET /schedules/{schedule}/counts": ["422"],
    # These requests are no handshakes.
    "GET /schedules/{schedule}/subscribe": ["426"],
    # The storage of a topic must exist, and a Kafka topic needs one; at most one of the payload members is given;
    # a seqNr has an upper limit, and those of an append rise; `since` is a cursor.
    "PUT /journals/{topic}": ["422"],
    **{f"{method} /journals/{{topic}}/{{id}}/events": ["422"] for method in ("POST", "DELETE")},
    **{
        f"{method} /journals/{{topic}}/{{id}}/snapshots/{{seq_nr}}": ["422"] for method in ("GET", "PUT", "DELETE")
    },
    # `after` is the place of a dead letter.
    "GET /dead-letters/{topic}": ["422"],
    "GET /fanout-dead-letters": ["422"],
    # Metadata are base64; an operation is not too old, and has one time; texts of 19 digits can be too large.
    **{f"{method} /feeds/{{feed}}": ["422"] for method in ("GET", "PUT", "DELETE")},
    **{f"POST /feeds/{{feed}}/{path}": ["422"] for path in ("merge", "unmerge")},
    # The same, and the feeds that are named in the body have valid names.
    **{f"POST {path}": ["422"] for path in ("/feed-entries", "/feed-entries/delete", "/feeds/get")},
    # A storage that is in use or is the default cannot be removed; the status is Nakadi's.
    "DELETE /storages/{id}": ["400"],
}
ACCEPTED = ["2xx", "404", "409"]


@schemathesis.serializer("application/msgpack")
def packed(_: object, value: object) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:  # MessagePack has no such number
        return b"\xc1"


def _config(examples: int) -> Config:
    return Config.from_dict(
        {
            "seed": 1,
            "suppress-health-check": ["all"],
            "request-timeout": 20,
            "checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}},
            "operations": [
                {
                    "include-name": name,
                    "checks": {"positive_data_acceptance": {"expected-statuses": [*ACCEPTED, *statuses]}},
                }
                for name, statuses in BEYOND_SCHEMA.items()
            ],
            "generation": {"max-examples": examples, "deterministic": True, "database": "none"},
        }
    )


any_request = schemathesis.openapi.from_dict(deepcopy(DOCUMENT), config=_config(10))
known_request = schemathesis.openapi.from_dict(_about_known(DOCUMENT), config=_config(10))


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("empty") / "data") as started:
        yield started


@pytest.fixture(scope="module")
def stocked_server(tmp_path_factory) -> Iterator[Server]:
    """A server with the known event types."""
    with Server(tmp_path_factory.mktemp("stocked") / "data") as started:
        for name, definition in KNOWN.items():
            assert CLIENT.post(f"{started.url}/event-types", json={"name": name, **definition}).status_code == 201
        assert CLIENT.put(f"{started.url}/schedules/known", json={}).status_code == 201
        assert CLIENT.put(f"{started.url}/journals/histories", json={}).status_code == 201
        events = [{"n": n} for n in range(4)]
        assert CLIENT.post(f"{started.url}/event-types/plain/events", json=events).status_code == 200
        yield started


@pytest.fixture(scope="module")
def subscription(stocked_server: Server) -> str:
    body = {"owning_application": "app", "event_types": ["plain"], "read_from": "begin"}
    return CLIENT.post(f"{stocked_server.url}/subscriptions", json=body).json()["id"]


def _not_about_one(context: HasAPIOperation) -> bool:
    """Excluded: paths without an event type, which other tests cover, and deletion of a known event type."""
    return "{name}" not in context.operation.path or context.operation.method.upper() == "DELETE"


@any_request.parametrize()
def test_any_request_is_answered_as_documented(case: Case, server: Server):
    """Every answer to a request with any names matches the document."""
    _send(case, server)


@known_request.exclude(_not_about_one).parametrize()
def test_requests_about_known_event_types_are_answered_as_documented(case: Case, stocked_server: Server):
    """Every answer to a request about an existing event type matches the document."""
    _send(case, stocked_server)


def _not_about_one_schedule(context: HasAPIOperation) -> bool:
    """Excluded: what creates or deletes a schedule, and the WebSocket, which needs a handshake."""
    path, method = context.operation.path, context.operation.method.upper()
    return "{schedule}" not in path or method in {"PUT", "DELETE"} or path.endswith("/subscribe")


@known_request.exclude(_not_about_one_schedule).parametrize()
def test_requests_about_a_known_schedule_are_answered_as_documented(case: Case, stocked_server: Server):
    """Every answer to a request about an existing schedule, or its dead messages, matches the document."""
    _send(case, stocked_server)


def _not_about_one_topic(context: HasAPIOperation) -> bool:
    """Excluded: what creates a topic."""
    path, method = context.operation.path, context.operation.method.upper()
    return "{topic}" not in path or (path == "/journals/{topic}" and method == "PUT")


@known_request.exclude(_not_about_one_topic).parametrize()
def test_requests_about_a_known_topic_of_journals_are_answered_as_documented(case: Case, stocked_server: Server):
    """Every answer to a request about an existing topic of journals, or a journal in it, matches the document."""
    _send(case, stocked_server)


def _not_about_one_subscription(context: HasAPIOperation) -> bool:
    """Excluded: streams, because a request that is valid by chance would open one for an hour, and deletion."""
    path, method = context.operation.path, context.operation.method.upper()
    return "{subscription_id}" not in path or path.endswith("/events") or method == "DELETE"


@known_request.exclude(_not_about_one_subscription).parametrize()
def test_requests_about_a_known_subscription_are_answered_as_documented(
    case: Case, stocked_server: Server, subscription: str
):
    """Every answer to a request about an existing subscription matches the document."""
    if not case.meta.is_negative_at(ParameterLocation.PATH):
        case.path_parameters = {"subscription_id": subscription}
    _send(case, stocked_server)


def _send(case: Case, server: Server) -> None:
    if case.path == STREAM and case.method == "GET" and not case.meta.is_negative_at(ParameterLocation.QUERY):
        # Without these limits the stream lasts an hour.
        case.query = {**(case.query or {}), "stream_timeout": 1, "batch_flush_timeout": 1}
    if case.path == LEASES and isinstance(case.body, dict) and isinstance(case.body.get("wait_ms"), int):
        case.body["wait_ms"] = min(case.body["wait_ms"], 10)
    response = case.call_and_validate(base_url=server.url)
    if response.status_code >= 400 and case.method != "HEAD":
        _check_error(response.headers["content-type"][0], response.json(), response.status_code)
    elif response.headers.get("content-type") == [JSON_STREAM]:
        for line in response.text.splitlines():
            BATCH.validate(msgspec.json.decode(line))


def _check_error(media_type: str, body: Any, status: int) -> None:
    """Errors are problem documents, except a refused batch, which has a result for every item."""
    if isinstance(body, list) or "items" in body:
        assert media_type == "application/json"
        assert status == 422
    else:
        assert media_type == "application/problem+json"
        assert body["status"] == status


def test_the_document_has_exactly_the_routes_of_the_application():
    """Every route is in the document, and every path of the document is a route."""
    documented = {
        (path, method.upper()) for path, operations in DOCUMENT["paths"].items() for method in operations
    }
    assert documented == {(endpoint.path, endpoint.method) for endpoint in ENDPOINTS}
    served = app.routes(ENDPOINTS, SimpleNamespace(rooms=dict.fromkeys(app.ROUTES)))
    assert {route.path: route.methods - {"HEAD"} for route in served} == {
        path: {method.upper() for method in operations} for path, operations in DOCUMENT["paths"].items()
    }


def test_the_document_is_openapi_3_1(server: Server):
    """The served document is the generated one and is valid OpenAPI 3.1."""
    served = CLIENT.get(f"{server.url}/openapi.json").json()
    assert served == DOCUMENT
    OPENAPI_31_VALIDATOR.validate(served)
    for schema in served["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def test_bodies_are_required_unless_the_route_has_a_default():
    """A generated client may leave out those that are not."""
    optional = {
        f"{method.upper()} {path}"
        for path, operations in DOCUMENT["paths"].items()
        for method, operation in operations.items()
        if not operation.get("requestBody", {"required": True})["required"]
    }
    assert optional == {"PUT /journals/{topic}", "PUT /schedules/{schedule}"}


def test_operations_have_names_of_their_own():
    """Operation ids are unique, because generated clients use them as function names."""
    names = [o["operationId"] for operations in DOCUMENT["paths"].values() for o in operations.values()]
    assert len(names) == len({*names})
