"""The OpenAPI document, from the same declarations as the routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

import strandline
from strandline.archive.model import HOUR_PATTERN
from strandline.feeds import rules as feed_rules
from strandline.journal.model import SEQ_NR_PATTERN
from strandline.log.model import NAME_PATTERN
from strandline.server.bodies import MSGPACK
from strandline.server.guard import PROBES
from strandline.server.problems import MEDIA_TYPE, Problem
from strandline.server.routing import RAW, Endpoint

_TEMPLATE = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{(\w+)}")
_PROBLEMS = {
    400: "The request could not be read",
    403: "A page of another origin made the browser send the request",
    404: "It does not exist",
    408: "The client did not send the rest of the body in time",
    409: "The name is in use, another request was first, or the current state does not allow it",
    412: "A cursor cannot be used; `reason` says why, `detail` says what is available",
    413: "The body is too large",
    415: "The Content-Type of the body is not one of those listed, or its Content-Encoding is not supported",
    421: "The node does not answer to the host of the request; see the setting `server.hosts`",
    422: "The request breaks a rule; `detail` says which",
    426: "The path is a WebSocket; the request has no handshake",
    431: "The request head is too large",
    503: "Temporarily unavailable",
    504: "The outcome is unknown: it may or may not have happened; read before you retry",
    507: "No space is left on the device; nothing was written",
}
_RETRY_AFTER = {503, 507}
#: The form of path parameters, by name.
PATTERNS = {
    "name": NAME_PATTERN,
    "partition": "^[0-9]+$",
    "version": r"^(latest|\d+\.\d+\.\d+)$",
    "hour": HOUR_PATTERN,
    "schedule": r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
    "message_id": "^.+$",
    "topic": NAME_PATTERN,
    "seq_nr": SEQ_NR_PATTERN,
    "feed": feed_rules.NAME_PATTERN,
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """OpenAPI 3.1 for all endpoints."""
    types = _types(endpoints)
    schemas, components = msgspec.json.schema_components(types, ref_template=_TEMPLATE)
    known = {str(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Strandline",
            "version": strandline.__version__,
            "description": "A timeline platform. The log follows Nakadi's event bus API.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _types(endpoints: Sequence[Endpoint]) -> list[Any]:
    found: dict[str, Any] = {str(Problem): Problem}
    for endpoint in endpoints:
        body = _body(endpoint)
        own = (body, endpoint.query, *endpoint.json_parameters.values(), *endpoint.returns.values())
        for kind in own:
            if kind is not None and not isinstance(kind, dict):
                found[str(kind)] = kind
    return list(found.values())


def _operation(endpoint: Endpoint, known: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": [*_path(endpoint), *_query(endpoint, known), *_headers(endpoint, known)],
        "responses": _responses(endpoint, known),
    }
    if (body := _body(endpoint)) is not None:
        schema = body if isinstance(body, dict) else known[str(body)]
        kinds = ["application/json", *([MSGPACK] if endpoint.msgpack else [])]
        content = {kind: {"schema": schema} for kind in kinds}
        operation["requestBody"] = {"required": not endpoint.body_optional, "content": content}
    return operation


def _body(endpoint: Endpoint) -> Any:
    """The type of the body, or its JSON schema."""
    return endpoint.body.schema if isinstance(endpoint.body, RAW) else endpoint.body


def _path(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "pattern": PATTERNS.get(name, "^[^/]+$")},
        }
        for name in _PARAMETER.findall(endpoint.path)
    ]


def _query(endpoint: Endpoint, known: dict[str, Any]) -> list[dict[str, Any]]:
    if endpoint.query is None:
        return []
    return [
        {
            "name": field.encode_name,
            "in": "query",
            "required": field.required,
            **(_json(endpoint, field.name, known) or {"schema": _parameter(field)}),
        }
        for field in msgspec.structs.fields(endpoint.query)
    ]


def _json(endpoint: Endpoint, name: str, known: dict[str, Any]) -> dict[str, Any] | None:
    """The content of a parameter whose text is JSON; None for other parameters."""
    kind = endpoint.json_parameters.get(name)
    return kind and {"content": {"application/json": {"schema": known[str(kind)]}}}


def _parameter(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    schema = msgspec.json.schema(field.type)
    choices = [choice for choice in schema.pop("anyOf", []) if choice.get("type") != "null"]
    for choice in choices:
        schema.update(choice)
    if field.default not in {msgspec.NODEFAULT, msgspec.UNSET, None}:
        schema["default"] = field.default
    return schema


def _headers(endpoint: Endpoint, known: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": text,
            **(_json(endpoint, name, known) or {"schema": {"type": "string"}}),
        }
        for name, text in endpoint.headers.items()
    ]


def _responses(endpoint: Endpoint, known: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, kind in endpoint.returns.items():
        answer: dict[str, Any] = {"description": _done(status)}
        if kind is not None:
            answer["content"] = {endpoint.media_type.split(";")[0]: {"schema": known[str(kind)]}}
            if endpoint.msgpack:
                answer["content"][MSGPACK] = {}
        if endpoint.binary_type is not None:
            answer["content"][endpoint.binary_type] = {}
        if headers := endpoint.answer_headers.get(status):
            answer["headers"] = {name: _header("string", text) for name, text in headers.items()}
        found[str(status)] = answer
    for status in _problems(endpoint):
        entry = found.setdefault(str(status), {"description": _PROBLEMS[status]})
        entry.setdefault("content", {})[MEDIA_TYPE] = {"schema": known[str(Problem)]}
        if status in _RETRY_AFTER:
            entry["headers"] = {"Retry-After": _header("integer", "Seconds to wait before the next attempt.")}
    return dict(sorted(found.items()))


def _done(status: int) -> str:
    if status == HTTPStatus.SWITCHING_PROTOCOLS:
        return "The connection is a WebSocket now"
    return "Done" if status < HTTPStatus.MULTIPLE_CHOICES else "The result of every item"


def _problems(endpoint: Endpoint) -> list[int]:
    found = {*endpoint.problems, 403, 431}
    if endpoint.path not in PROBES:
        found |= {400, 421}
    if endpoint.body is not None:
        found |= {408, 413, 415, 422}
    if endpoint.query is not None:
        found.add(422)
    if _PARAMETER.search(endpoint.path):
        found.add(404)
    if endpoint.tag != "operations":
        found |= {503} if endpoint.method == "GET" else {503, 504}
    return sorted(found)


def _header(kind: str, text: str) -> dict[str, Any]:
    return {"required": True, "description": text, "schema": {"type": kind}}
