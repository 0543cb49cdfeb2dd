"""The frames of push sessions and the items of schedule requests, as JSON."""

from __future__ import annotations

import json

import msgspec
import pytest

from strandline.errors import Invalid, Malformed, Unavailable
from strandline.schedule.model import (
    Body,
    ItemAnswer,
    Lease,
    LeaseAct,
    Moment,
    NewMessage,
    OwnerAct,
    StoredMessage,
)
from strandline.server import schedule_frames as frames
from strandline.server import schedule_items as items

MESSAGE = StoredMessage("x", 1, 2000, 1000, "g", "c", 7, 3, 500)


def test_an_act_has_a_kind_a_reference_and_items():
    """The consumer is the one of the session, unless the item has one."""
    text = '{"extend": {"ref": "r", "items": [{"id": "x", "version": 1, "in_ms": 5}, {"id": "y", "version": 2, "at_ms": 9, "consumer": "d"}]}}'  # noqa: E501
    act = frames.read(text, "c")
    assert isinstance(act, frames.Act)
    assert (act.kind, act.ref, act.size) == ("extend", "r", len(text))
    assert act.batch.accepted == [
        LeaseAct("x", "c", 1, Moment(5, relative=True)),
        LeaseAct("y", "d", 2, Moment(9)),
    ]


def test_pings_and_credits():
    """A ping has the time of the client; a credit is a number."""
    assert frames.read('{"ping": {"client_ms": 5}}', "c") == frames.PingBody(5)
    assert frames.read('{"credit": 0}', "c") == 0


@pytest.mark.parametrize(
    ("text", "error"),
    [("", Malformed), ("{", Malformed), ("{}", Invalid), ("[]", Invalid), ('{"credit": 1, "extend": 1}', Invalid)],
)
def test_what_is_no_frame(text, error):
    """The error says whether it is JSON at all."""
    with pytest.raises(error):
        frames.read(text, "c")


def test_frames_of_the_server():
    """A lease with its body, results, a pong and an error."""
    lease = json.loads(frames.lease(Lease(MESSAGE, Body(b'{"a":1}', is_json=True))))
    assert lease == {
        "lease": {
            "id": "x",
            "version": 7,
            "expires_at_ms": 2000,
            "due_at_ms": 1000,
            "delivery_count": 3,
            "created_ms": 500,
            "producer_group": "g",
            "body": {"a": 1},
        }
    }
    of_bytes = json.loads(frames.lease(Lease(MESSAGE, Body(b"\x00\xff"))))["lease"]
    assert (of_bytes["body_base64"], "body" in of_bytes) == ("AP8=", False)
    answers = [ItemAnswer("x", "ok", version=8), ItemAnswer("y", "error", code="not_found")]
    assert json.loads(frames.results(1, answers)) == {
        "results": {
            "ref": 1,
            "items": [
                {"id": "x", "status": "ok", "version": 8},
                {"id": "y", "status": "error", "code": "not_found"},
            ],
        }
    }
    assert json.loads(frames.pong(frames.PingBody(5), 6)) == {"pong": {"client_ms": 5, "server_ms": 6}}
    act = frames.read('{"delete": {"ref": 3, "items": [7]}}', "c")
    assert isinstance(act, frames.Act)
    assert json.loads(frames.failed(Unavailable("no"), act)) == {
        "error": {"code": "unavailable", "detail": "no", "ref": 3}
    }


def test_a_batch_answers_malformed_items_in_their_places():
    """The accepted ones are answered by the room."""
    body = b'{"items": [{"id": "a", "producer_group": "g"}, 7, {"id": "b", "producer_group": "g", "version": "x"}, {"id": "c", "producer_group": "g"}]}'  # noqa: E501
    batch = items.read_batch(body, items.PutBackItem, items.put_back)
    assert batch.accepted == [OwnerAct("a", "g"), OwnerAct("c", "g")]
    found = batch.answers([ItemAnswer("a", "ok"), ItemAnswer("c", "ok")])
    assert [(answer.id, answer.code) for answer in found] == [
        ("a", None),
        ("", "invalid"),
        ("b", "invalid"),
        ("c", None),
    ]
    assert items.status_of(found) == 207
    assert items.status_of(found[:1]) == 200
    assert items.status_of(found[1:3]) == 422


def test_json_bodies_lose_their_spaces_and_nothing_else():
    """So that a repeated create has the same body."""
    item = msgspec.json.decode(
        b'{"producer_group": "g", "body": { "a" : [ 1.0 , 1e400 ] }}', type=items.CreateItem
    )
    assert items.new_message(item) == NewMessage("", "g", Body(b'{"a":[1.0,1e400]}', is_json=True))
