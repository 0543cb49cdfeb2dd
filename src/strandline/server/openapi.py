"""The OpenAPI document, from the same declarations as the routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

import strandline
from strandline.log.model import NAME_PATTERN
from strandline.server.problems import MEDIA_TYPE, Problem
from strandline.server.routing import RAW, Endpoint

_TEMPLATE = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{(\w+)}")
_PATTERNS = {"name": NAME_PATTERN, "partition": "^[0-9]+$", "version": r"^(latest|\d+\.\d+\.\d+)$"}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """OpenAPI 3.1 for all endpoints."""
    types = _types(endpoints)
    schemas, components = msgspec.json.schema_components(types, ref_template=_TEMPLATE)
    known = {id_of(kind): schema for kind, schema in zip(types, schemas, strict=True)}
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


def id_of(kind: Any) -> str:
    return str(kind)


def _types(endpoints: Sequence[Endpoint]) -> list[Any]:
    found: dict[str, Any] = {id_of(Problem): Problem}
    for endpoint in endpoints:
        for kind in (endpoint.body, endpoint.query, *endpoint.returns.values()):
            if kind is not None and not isinstance(kind, RAW):
                found[id_of(kind)] = kind
    return list(found.values())


def _operation(endpoint: Endpoint, known: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": [*_path(endpoint), *_query(endpoint), *_headers(endpoint)],
        "responses": _responses(endpoint, known),
    }
    if endpoint.body is not None:
        schema = endpoint.body.schema if isinstance(endpoint.body, RAW) else known[id_of(endpoint.body)]
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _path(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "pattern": _PATTERNS.get(name, "^[^/]+$")},
        }
        for name in _PARAMETER.findall(endpoint.path)
    ]


def _query(endpoint: Endpoint) -> list[dict[str, Any]]:
    if endpoint.query is None:
        return []
    return [
        {"name": field.encode_name, "in": "query", "required": field.required, "schema": _parameter(field)}
        for field in msgspec.structs.fields(endpoint.query)
    ]


def _parameter(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    schema = msgspec.json.schema(field.type)
    choices = [choice for choice in schema.pop("anyOf", []) if choice.get("type") != "null"]
    for choice in choices:
        schema.update(choice)
    if field.default is not msgspec.NODEFAULT and field.default is not None:
        schema["default"] = field.default
    return schema


def _headers(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in endpoint.headers.items()
    ]


def _responses(endpoint: Endpoint, known: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, kind in endpoint.returns.items():
        answer: dict[str, Any] = {"description": "Done" if status < 300 else "What became of every event"}  # noqa: PLR2004
        if kind is not None:
            answer["content"] = {endpoint.media_type.split(";")[0]: {"schema": known[id_of(kind)]}}
        found[str(status)] = answer
    problem = {MEDIA_TYPE: {"schema": known[id_of(Problem)]}}
    for status in sorted({*endpoint.problems, *((422,) if endpoint.query else ())}):
        entry = found.setdefault(str(status), {"description": "A problem; `detail` says what to do"})
        entry.setdefault("content", {}).update(problem)
    return found
