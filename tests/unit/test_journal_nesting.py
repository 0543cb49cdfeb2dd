"""JSON that is nested deeply, and the recursion limit of Python."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Malformed
from strandline.journal import actions, payloads
from strandline.journal.model import NewEvent, Payload
from strandline.journal.nesting import MAX_NESTING, is_too_deep

VALUES = st.recursive(
    st.none() | st.text('[]{}"\\x'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[{"\\', max_size=3), inner, max_size=3),
)


def depth(value) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(VALUES, st.booleans())
def test_the_depth_of_a_text(value, is_ascii):
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    for limit in range(4):
        assert is_too_deep(text, limit) == (depth(value) > limit)


def no_stack(_: bytes):
    """Decode where the caller has left no stack."""
    raise RecursionError


DEEP = b"[" * MAX_NESTING + b"]" * MAX_NESTING


def test_a_reader_with_little_stack_does_not_take_an_append_for_malformed(monkeypatch):
    encoding, value = payloads.encode([NewEvent(Payload("json", DEEP), (), 1)], DEEP)
    assert payloads.decode(encoding, value) == ([(1, (), Payload("json", DEEP))], DEEP, None)
    monkeypatch.setattr(payloads, "_decode_json", no_stack)
    with pytest.raises(RecursionError):
        payloads.decode(encoding, value)


def test_a_payload_or_metadata_in_a_binary_value_neither(monkeypatch):
    events = [NewEvent(Payload("json", DEEP), (), 1), NewEvent(Payload("binary", b""), (), 2)]
    encoding, value = payloads.encode(events, DEEP)
    assert payloads.decode(encoding, value).data == DEEP
    for name in ("_check_json", "_decode_metadata"):
        with monkeypatch.context() as patched:
            patched.setattr(payloads, name, no_stack)
            with pytest.raises(RecursionError):
                payloads.decode(encoding, value)


def test_a_header_neither(monkeypatch):
    header = b'{"append":{"range":{"from":1,"to":1},"payloadType":"json","metadata":{"data":%b}}}' % DEEP
    assert actions.decode(header) is not None
    monkeypatch.setattr(actions, "_decode_append", no_stack)
    with pytest.raises(RecursionError):
        actions.decode(header)


@pytest.mark.parametrize("encoding", ["json", "binary"])
def test_what_no_process_can_decode_is_malformed(encoding):
    deep = Payload("json", b"[" * 100_000 + b"]" * 100_000)
    more = [NewEvent(Payload("binary", b""), (), 2)] if encoding == "binary" else []
    with pytest.raises(Malformed, match="inside each other"):
        payloads.decode(*payloads.encode([NewEvent(deep, (), 1), *more]))
    with pytest.raises(Malformed, match="inside each other"):
        actions.decode(b'{"purge":{"x":%b}}' % deep.data)
