"""What producers and workers write: messages, moments, refusals, pauses between attempts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import msgspec
import pytest

from strandline.client.schedule import _in_parts
from strandline.client.schedule_feed import ServerTime
from strandline.clock import ManualClock
from strandline.errors import BadTimestamp, Conflict, Forbidden, Invalid, LeaseLost, NotFound, OutcomeUnknown
from strandline.schedule import Message, Retry, moment_of, raise_for_failed
from strandline.schedule.message import value_of
from strandline.schedule.model import NOW, Body, ChosenMessage, ItemAnswer, Moment
from strandline.schedule.rules import MAX_ITEMS

NOON = 1_714_564_800_000


def test_a_message_is_due_at_a_datetime_a_number_or_later():
    """A datetime may be in any time zone; `in_ms` is relative to the store's time; the default is now."""
    east = timezone(timedelta(hours=2))
    for at in (NOON, datetime(2024, 5, 1, 12, tzinfo=UTC), datetime(2024, 5, 1, 14, tzinfo=east)):
        assert Message({}, at=at).moment == Moment(NOON)
    assert Message({}, in_ms=86_400_000).moment == Moment(86_400_000, relative=True)
    assert Message({}).moment == NOW
    assert Message({}, at=0).moment == Moment(0)


def test_a_moment_is_given_in_one_way():
    """Both ways, none, and a datetime without a time zone are refused."""
    for wrong in ({"at": NOON, "in_ms": 1}, {}, {"at": datetime(2024, 5, 1, 12)}):  # noqa: DTZ001 - refused
        with pytest.raises(Invalid, match="; "):
            moment_of(**wrong)


def test_a_number_beyond_all_floats_is_a_decimal():
    """Other producers may write it; a consumer that failed would get the message again and again."""
    assert value_of(Body(b'{"n":1e400,"m":1.5}', is_json=True)) == {"n": Decimal("1E+400"), "m": 1.5}


@pytest.mark.parametrize("value", [{"user": 7}, [1, None], "text", 5, None, b"\x00\xff", b""])
def test_a_body_is_a_json_value_or_bytes(value):
    """Bytes stay bytes; other values become JSON and are read back."""
    body = Message(value).body
    assert (body.is_json, value_of(body)) == (not isinstance(value, bytes), value)


def test_a_body_that_json_cannot_express_is_refused():
    """The error names the reason."""
    with pytest.raises(Invalid, match="must be bytes or a JSON value"):
        Message(object())
    assert Message(bytearray(b"a")).body == Body(b"a")


def test_every_message_has_an_id():
    """An id that is not given is unique, and ids of later milliseconds are larger."""
    made = [Message({}).id for _ in range(100)]
    assert len(set(made)) == 100
    assert Message({}, id="user-7", group="signup").id == "user-7"
    with pytest.raises(Invalid):  # perhaps a variable that was not set: a new id would hide that
        Message({}, id="")


def test_a_refused_item_is_an_error_of_its_family():
    """The error names the message and the number of other failures, and carries all refused items."""
    kinds = {
        "not_found": NotFound,
        "not_owner": Forbidden,
        "lease_active": Conflict,
        "too_far": BadTimestamp,
        "stale_version": LeaseLost,
        "invalid": Invalid,
        "already_exists": Conflict,
    }
    fine = ItemAnswer("a", "ok", version=1)
    for code, kind in kinds.items():
        refused = ItemAnswer("b", "error", code=code, detail="why")
        with pytest.raises(kind, match=r"message 'b': why \(1 more items failed\)") as caught:
            raise_for_failed([fine, refused, refused])
        assert caught.value.info["items"] == [msgspec.to_builtins(refused)] * 2


def test_a_repeated_create_and_a_repeated_delete_have_succeeded():
    """A create that finds its own message is not a failure: the version tells."""
    raise_for_failed(
        [
            ItemAnswer("a", "error", version=5, code="already_exists"),
            ItemAnswer("b", "ok", version=5, code="already_deleted"),
        ]
    )


def test_pauses_grow_up_to_the_longest():
    """The pause doubles with every delivery; the jitter is added to it."""
    retry = Retry(first_ms=100, longest_ms=1_000, jitter=0)
    assert [retry.delay_ms(count) for count in (1, 2, 3, 4, 5, 1_000)] == [100, 200, 400, 800, 1_000, 1_000]
    assert all(100 <= Retry(first_ms=100, jitter=0.5).delay_ms(1) <= 150 for _ in range(100))
    assert Retry(first_ms=0, jitter=0).delay_ms(1) == 6


def test_the_servers_time_is_estimated_by_the_fastest_ping():
    """The error of an estimate is at most half of the time that the ping took."""
    clock = ManualClock(1_000_000)
    estimate, ahead_ms = ServerTime(clock), 5_000_000
    assert not estimate.is_known
    for there_ms, back_ms in ((90, 10), (4, 6), (0, 200)):
        sent = estimate.ping()
        assert sent == {"client_ms": clock.now_ms()}
        clock.advance(there_ms)
        answered_ms = clock.now_ms() + ahead_ms
        clock.advance(back_ms)
        estimate.pong(sent["client_ms"], answered_ms)
        assert estimate.is_known
    assert estimate.now_ms() == clock.now_ms() + ahead_ms - 1
    assert estimate.until_ping_ms() > 0
    clock.advance(5_000)
    assert estimate.until_ping_ms() <= 0
    assert estimate.now_ms() == clock.now_ms() + ahead_ms - 1


def test_a_slow_first_ping_is_followed_by_others_soon():
    """With its large error, short leases would seem to have ended when they arrive. The answer is waited for."""
    clock = ManualClock(1_000_000)
    estimate = ServerTime(clock)
    sent = estimate.ping()
    clock.advance(400)
    assert estimate.until_ping_ms() > 1_000
    estimate.pong(sent["client_ms"], clock.now_ms() - 400)
    assert estimate.now_ms() == clock.now_ms() - 200
    assert estimate.until_ping_ms() <= 0
    fast = estimate.ping()
    estimate.pong(sent["client_ms"], 0)  # late, and not the answer to this ping
    clock.advance(2)
    estimate.pong(fast["client_ms"], clock.now_ms() - 1)
    assert estimate.now_ms() == clock.now_ms()
    assert estimate.until_ping_ms() > 1_000


def test_a_slow_network_gets_few_pings():
    """After a few slow answers no faster one is expected."""
    clock = ManualClock(1_000_000)
    estimate = ServerTime(clock)
    for _ in range(8):
        assert estimate.until_ping_ms() < 1_000 or not estimate.is_known
        sent = estimate.ping()
        clock.advance(150)
        estimate.pong(sent["client_ms"], clock.now_ms())
    assert estimate.until_ping_ms() > 1_000


def test_a_batch_that_fails_after_its_first_part_has_an_unknown_outcome():
    """Whatever the error is: it alone would say that nothing was done."""
    items = [ChosenMessage(f"m{number}") for number in range(MAX_ITEMS + 1)]

    def send(part):
        if len(part) == 1:
            raise NotFound("the schedule was deleted")
        return part

    with pytest.raises(OutcomeUnknown, match="a part of the batch was stored: the schedule was deleted"):
        _in_parts(items, send)
    with pytest.raises(NotFound):
        _in_parts(items[:1], send)
