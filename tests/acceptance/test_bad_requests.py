"""Bad requests for every route, one per line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from requests_as_is import DEFINITIONS, NUMBERED, assert_problem, send
from services import Server

RETYPED = NUMBERED.replace("integer", "string")
#: Forty definitions, each with two references to the next: 2^40 schemas to check.
MULTIPLYING = json.dumps(
    {
        "$ref": "#/definitions/0",
        "definitions": {
            **{str(n): {"allOf": [{"$ref": f"#/definitions/{n + 1}"}] * 2} for n in range(40)},
            "40": {"type": "object"},
        },
    }
)
CURSORS = "X-Nakadi-Cursors"
TYPES = "/event-types"
STREAM = "/event-types/placed/events"
PARTITIONS = "/event-types/placed/partitions"
SCHEMAS = "/event-types/careful/schemas"


def kind(**more: Any) -> dict[str, Any]:
    return {"name": "new", **more}


def schema(text: str, **more: Any) -> dict[str, Any]:
    return kind(schema={"schema": text}, **more)


def careful(**more: Any) -> dict[str, Any]:
    return {"name": "careful", **DEFINITIONS["careful"], **more}


def placed(**more: Any) -> dict[str, Any]:
    return {"name": "placed", **DEFINITIONS["placed"], **more}


REQUESTS: list[tuple[str, str, Any, dict[str, str], int, str]] = [
    # method, path, body, headers, status, a word of the detail
    ("POST", TYPES, {}, {}, 422, "name"),
    ("POST", TYPES, {"name": None}, {}, 422, "name"),
    ("POST", TYPES, {"name": 7}, {}, 422, "name"),
    ("POST", TYPES, {"name": ""}, {}, 422, "name"),
    ("POST", TYPES, {"name": "7days"}, {}, 422, "name"),
    ("POST", TYPES, {"name": "a b"}, {}, 422, "name"),
    ("POST", TYPES, {"name": "a/b"}, {}, 422, "name"),
    ("POST", TYPES, {"name": "../a"}, {}, 422, "name"),
    ("POST", TYPES, {"name": "a..b"}, {}, 422, "name"),
    ("POST", TYPES, {"name": ".a"}, {}, 422, "name"),
    ("POST", TYPES, {"name": "a."}, {}, 422, "name"),
    ("POST", TYPES, {"name": "a\n"}, {}, 422, "name"),
    ("POST", TYPES, {"name": "a\0"}, {}, 422, "name"),
    ("POST", TYPES, {"name": "ünder"}, {}, 422, "name"),
    ("POST", TYPES, b'{"name": "\\ud800"}', {}, 400, "JSON"),
    ("POST", TYPES, {"name": "placed"}, {}, 409, "exists"),
    ("POST", TYPES, kind(category="social"), {}, 422, "category"),
    ("POST", TYPES, kind(category=None), {}, 422, "category"),
    ("POST", TYPES, kind(cleanup_policy="compact"), {}, 422, "cleanup_policy"),
    ("POST", TYPES, kind(partitions=0), {}, 422, "partitions"),
    ("POST", TYPES, kind(partitions=-1), {}, 422, "partitions"),
    ("POST", TYPES, kind(partitions=10**9), {}, 422, "1000"),
    ("POST", TYPES, kind(partitions=10**30), {}, 422, "partitions"),
    ("POST", TYPES, b'{"name": "new", "partitions": 1e999}', {}, 422, "partitions"),
    ("POST", TYPES, kind(partitions=1.5), {}, 422, "partitions"),
    ("POST", TYPES, kind(partitions="4"), {}, 422, "partitions"),
    ("POST", TYPES, kind(partitions=True), {}, 422, "partitions"),
    ("POST", TYPES, kind(partitions=[4]), {}, 422, "partitions"),
    ("POST", TYPES, kind(default_statistic={"read_parallelism": 10**6}), {}, 422, "too many"),
    ("POST", TYPES, kind(default_statistic={"read_parallelism": -1}), {}, 422, "read_parallelism"),
    ("POST", TYPES, kind(default_statistic=4), {}, 422, "default_statistic"),
    ("POST", TYPES, kind(partition_strategy="sorted"), {}, 422, "partition_strategy"),
    ("POST", TYPES, kind(partition_strategy="hash"), {}, 422, "partition_key_fields"),
    ("POST", TYPES, kind(partition_strategy="hash", partition_key_fields=[]), {}, 422, "partition_key_fields"),
    ("POST", TYPES, kind(partition_strategy="hash", partition_key_fields="id"), {}, 422, "partition_key_fields"),
    ("POST", TYPES, kind(partition_strategy="hash", partition_key_fields=[1]), {}, 422, "partition_key_fields"),
    ("POST", TYPES, kind(enrichment_strategies=["metadata_enrichment"]), {}, 422, "enrichment"),
    ("POST", TYPES, kind(category="data", enrichment_strategies=["magic"]), {}, 422, "enrichment"),
    ("POST", TYPES, kind(options={"retention_time": 0}), {}, 422, "retention_time"),
    ("POST", TYPES, kind(options={"retention_time": "2 days"}), {}, 422, "retention_time"),
    ("POST", TYPES, kind(options={"retention_time": 2**60}), {}, 422, "retention_time"),
    ("POST", TYPES, kind(options=None), {}, 422, "options"),
    ("POST", TYPES, kind(annotations={"a": 1}), {}, 422, "annotations"),
    ("POST", TYPES, kind(compatibility_mode="maybe"), {}, 422, "compatibility_mode"),
    ("POST", TYPES, kind(schema=None), {}, 422, "schema"),
    ("POST", TYPES, kind(schema={"schema": {"type": "object"}}), {}, 422, "schema"),
    ("POST", TYPES, kind(schema={"type": "avro_schema", "schema": "{}"}), {}, 422, "schema.type"),
    ("POST", TYPES, schema(""), {}, 422, "schema"),
    ("POST", TYPES, schema("{"), {}, 422, "not JSON"),
    ("POST", TYPES, schema("[]"), {}, 422, "object"),
    ("POST", TYPES, schema("null"), {}, 422, "object"),
    ("POST", TYPES, schema('{"type": "thing"}'), {}, 422, "thing"),
    ("POST", TYPES, {"name": "n" * 256}, {}, 422, "255"),
    ("POST", TYPES, schema('{"type": "array"}'), {}, 422, "object"),
    ("POST", TYPES, schema('{"type": ["string", "null"]}'), {}, 422, "object"),
    ("POST", TYPES, schema('{"enum": ["a", 1]}'), {}, 422, "object"),
    ("POST", SCHEMAS, {"schema": '{"type": "string"}'}, {}, 422, "object"),
    ("POST", TYPES, schema('{"properties": 7}'), {}, 422, "7"),
    ("POST", TYPES, schema('{"pattern": "("}'), {}, 422, "schema"),
    ("POST", TYPES, schema('{"$schema": 4}'), {}, 422, "schema"),
    ("POST", TYPES, schema('{"$ref": "http://127.0.0.1:1/schema"}'), {}, 422, "127.0.0.1"),
    ("POST", TYPES, schema('{"$ref": "file:///etc/passwd"}'), {}, 422, "passwd"),
    ("POST", TYPES, schema('{"$ref": "#/nowhere"}'), {}, 422, "nowhere"),
    ("POST", TYPES, schema('{"not":' * 300 + "{}" + "}" * 300), {}, 422, "recursion"),
    ("POST", TYPES, schema('{"a":' * 900 + "{}" + "}" * 900, compatibility_mode="compatible"), {}, 422, "recur"),
    ("POST", TYPES, schema('{"a":' * 9000 + "{}" + "}" * 9000), {}, 422, "recursion"),
    ("POST", TYPES, schema(MULTIPLYING), {}, 422, "multiply"),
    ("POST", TYPES, schema('{"minimum": 1e999}'), {}, 422, "range"),
    ("POST", TYPES, schema('{"properties": {"metadata": {}}}', category="business"), {}, 422, "metadata"),
    ("POST", TYPES, schema('{"not": {}}', compatibility_mode="compatible"), {}, 422, "not"),
    ("PUT", "/event-types/placed", kind(), {}, 422, "name"),
    ("PUT", "/event-types/placed", {"name": "plain"}, {}, 422, "name"),
    ("PUT", "/event-types/placed", placed(category="data"), {}, 422, "category"),
    ("PUT", "/event-types/placed", placed(partition_strategy="random"), {}, 422, "partition_strategy"),
    ("PUT", "/event-types/placed", placed(partitions=1), {}, 422, "partition count"),
    ("PUT", "/event-types/placed", placed(partitions=3), {}, 422, "partition count"),
    ("PUT", "/event-types/placed", placed(compatibility_mode="none"), {}, 422, "compatibility_mode"),
    ("PUT", "/event-types/placed", placed(partition_key_fields=["n"]), {}, 422, "partition_key_fields"),
    ("PUT", "/event-types/placed", placed(schema={"schema": "{"}), {}, 422, "schema"),
    ("PUT", "/event-types/careful", careful(schema={"schema": "{}"}), {}, 422, "compatible"),
    ("PUT", "/event-types/careful", careful(schema={"schema": RETYPED}), {}, 422, "compatible"),
    ("GET", SCHEMAS + "?limit=0", None, {}, 422, "limit"),
    ("GET", SCHEMAS + "?limit=-1", None, {}, 422, "limit"),
    ("GET", SCHEMAS + "?limit=1001", None, {}, 422, "limit"),
    ("GET", SCHEMAS + "?limit=ten", None, {}, 422, "limit"),
    ("GET", SCHEMAS + "?limit=", None, {}, 422, "limit"),
    ("GET", SCHEMAS + "?limit=1.5", None, {}, 422, "limit"),
    ("GET", SCHEMAS + "?limit=%D9%A3", None, {}, 422, "limit"),
    ("GET", SCHEMAS + "?offset=-1", None, {}, 422, "offset"),
    ("GET", SCHEMAS + "?offset=99999999999999999999", None, {}, 422, "offset"),
    ("GET", SCHEMAS + "?offset=" + "9" * 5000, None, {}, 422, "offset"),
    ("GET", SCHEMAS + "/9.9.9", None, {}, 404, "9.9.9"),
    ("GET", SCHEMAS + "/newest", None, {}, 404, "newest"),
    ("POST", SCHEMAS, {"schema": "{}"}, {}, 422, "compatible"),
    ("POST", SCHEMAS, {"schema": 7}, {}, 422, "schema"),
    ("POST", SCHEMAS, {"schema": "["}, {}, 422, "JSON"),
    ("POST", SCHEMAS, {"type": "avro_schema", "schema": NUMBERED}, {}, 422, "type"),
    ("POST", SCHEMAS + "?fetch=maybe", {"schema": NUMBERED}, {}, 422, "fetch"),
    ("POST", SCHEMAS + "?fetch=true", {"schema": "["}, {}, 422, "JSON"),
    ("POST", SCHEMAS + "?fetch=true", {"schema": "[" * 5000}, {}, 422, "JSON"),
    ("POST", SCHEMAS + "?fetch=true", {"schema": "{}"}, {}, 404, "matches"),
    ("GET", "/storages/nowhere", None, {}, 404, "nowhere"),
    ("GET", "/storages/..", None, {}, 404, ".."),
    ("GET", PARTITIONS + "/2", None, {}, 404, "0 to 1"),
    ("GET", PARTITIONS + "/-1", None, {}, 404, "-1"),
    ("GET", PARTITIONS + "/00", None, {}, 404, "00"),
    ("GET", PARTITIONS + "/" + "9" * 5000, None, {}, 404, "999"),
    ("GET", PARTITIONS + "/%C2%B2", None, {}, 404, "²"),
    ("GET", PARTITIONS + "/2?consumed_offset=BEGIN", None, {}, 404, "2"),
    ("GET", PARTITIONS + "/0?consumed_offset=", None, {}, 422, "offset"),
    ("GET", PARTITIONS + "/0?consumed_offset=newest", None, {}, 422, "newest"),
    ("GET", PARTITIONS + "/0?consumed_offset=99", None, {}, 422, "available offsets are"),
    ("GET", PARTITIONS + "?cursors=begin", None, {}, 400, "cursors"),
    ("GET", PARTITIONS + "?cursors=%7B%7D", None, {}, 400, "cursors"),
    ("GET", PARTITIONS + "?cursors=" + "[" * 5000, None, {}, 400, "cursors"),
    ("GET", STREAM + "?batch_limit=0", None, {}, 422, "batch_limit"),
    ("GET", STREAM + "?batch_limit=-1", None, {}, 422, "batch_limit"),
    ("GET", STREAM + "?batch_limit=many", None, {}, 422, "batch_limit"),
    ("GET", STREAM + "?batch_limit=", None, {}, 422, "batch_limit"),
    ("GET", STREAM + "?batch_limit=99999999999", None, {}, 422, "batch_limit"),
    ("GET", STREAM + "?stream_limit=-1", None, {}, 422, "stream_limit"),
    ("GET", STREAM + "?stream_limit=1.5", None, {}, 422, "stream_limit"),
    ("GET", STREAM + "?stream_timeout=-1", None, {}, 422, "stream_timeout"),
    ("GET", STREAM + "?batch_flush_timeout=soon", None, {}, 422, "batch_flush_timeout"),
    ("GET", STREAM + "?stream_keep_alive_limit=-1", None, {}, 422, "stream_keep_alive_limit"),
    ("GET", STREAM + "?stream_limit=5&batch_limit=10", None, {}, 422, "lower than batch_limit"),
    ("GET", STREAM + "?stream_timeout=5&batch_flush_timeout=10", None, {}, 422, "lower than batch_flush_timeout"),
    ("GET", STREAM, None, {CURSORS: ""}, 400, CURSORS),
    ("GET", STREAM, None, {CURSORS: "BEGIN"}, 400, CURSORS),
    ("GET", STREAM, None, {CURSORS: '[{"partition": "0"'}, 400, CURSORS),
    ("GET", STREAM, None, {CURSORS: '{"partition": "0", "offset": "BEGIN"}'}, 400, CURSORS),
    ("GET", STREAM, None, {CURSORS: '[{"partition": 0, "offset": "BEGIN"}]'}, 400, CURSORS),
    ("GET", STREAM, None, {CURSORS: "null"}, 400, CURSORS),
    ("GET", STREAM, None, {CURSORS: "[]"}, 412, "partition"),
    ("GET", STREAM, None, {CURSORS: "[null]"}, 400, CURSORS),
    ("GET", STREAM, None, {CURSORS: "[" * 10_000}, 400, CURSORS),
    ("GET", STREAM, None, {CURSORS: "\xe9"}, 400, CURSORS),
    ("POST", STREAM, b'{"n": 1}', {}, 400, "array"),
    ("POST", STREAM, b'[{"n": 1}', {}, 400, "truncated"),
    ("POST", STREAM, b'[{"n": 1},]', {}, 400, "JSON"),
    ("POST", STREAM, b'[{"n": "\xff"}]', {}, 400, "UTF-8"),
    ("POST", STREAM, b'[{"n": 1} {"n": 2}', {}, 400, "JSON"),
    ("POST", STREAM, [{}] * 101, {}, 413, "100"),
]  # fmt: skip


def _label(case: tuple[Any, ...]) -> str:
    method, path, body, headers, *_ = case
    sent = body.decode("latin-1") if isinstance(body, bytes) else json.dumps(body or headers.get(CURSORS, ""))
    return f"{method} {path} {sent}"[:100].encode("unicode_escape").decode()


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "word"), REQUESTS, ids=map(_label, REQUESTS)
)
def test_requests_that_break_a_rule(
    target: Server, method: str, path: str, body: Any, headers: dict[str, str], status: int, word: str
):
    """The answer has the status that Nakadi documents, and its detail names the error."""
    assert_problem(send(target, method, path, body, headers), status, word)
