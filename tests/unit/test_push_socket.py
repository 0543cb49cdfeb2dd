"""What a push session has written when it ends, and what it holds in memory."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from strandline.schedule.model import Body, Lease, StoredMessage
from strandline.server.byte_budget import ByteBudget
from strandline.server.push_socket import PushSocket, _Outbox

NOW = 1_714_564_800_000


def lease(name, at_ms=NOW + 1000):
    return Lease(StoredMessage(name, 7, at_ms, NOW, "shop", "ada", 10, 1, NOW), Body(b"{}", is_json=True))


@pytest.mark.parametrize(
    ("done", "sent"), [(0, ["a"]), (1, ["a", "b"]), (2, ["a", "b", "c"]), (3, ["a", "b", "c"])]
)
def test_every_lease_that_was_written_is_reported_when_the_session_ends(done, sent):
    """Also those that were written in the moment of the end, and the one that may be written in part."""
    reported = []

    async def run():
        written = [asyncio.get_running_loop().create_future() for _ in "abc"]

        async def send(message):
            await written["abc".index(message["text"])]

        socket = SimpleNamespace(
            _state=SimpleNamespace(settings=SimpleNamespace(stalled_client_ms=60_000)),
            _session=SimpleNamespace(sent=lambda leases: reported.extend(one.message.id for one in leases)),
            _ease=lambda _size: None,
        )
        burst = [(name, lease(name)) for name in "abc"]
        writing = asyncio.create_task(PushSocket._write_burst(socket, send, burst))
        for _ in range(3):
            await asyncio.sleep(0)
        for one in written[:done]:
            one.set_result(None)
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing

    asyncio.run(run())
    assert reported == sent


def an_outbox(held, given_back=None):
    call = SimpleNamespace(room=SimpleNamespace(now_ms=lambda: NOW), state=SimpleNamespace(buffered=held))
    return _Outbox(call, lambda leases: given_back.extend(one.message.id for one in leases))


def test_leases_that_come_after_the_end_hold_no_memory():
    """The leaser had placed them before the session ended, and delivers them after."""

    async def run():
        held = ByteBudget(1_000, "the streams")
        outbox = an_outbox(held)
        outbox.leased([lease("a"), lease("b")])
        assert held.held == 4
        outbox.close()
        assert held.held == 0
        outbox.leased([lease("c")])
        assert held.held == 0

    asyncio.run(run())


def test_no_lease_is_written_while_the_consumer_wants_none():
    """Otherwise one could cross the close frame of a consumer that leaves, and nobody would have it."""

    async def run():
        outbox = an_outbox(ByteBudget(1_000, "the streams"))
        outbox.hold_leases(hold=True)
        outbox.leased([lease("a")])
        outbox.reply("pong")
        assert [text for text, _ in await outbox.next()] == ["pong"]
        next_frames = asyncio.create_task(outbox.next())
        await asyncio.sleep(0)
        assert not next_frames.done()
        outbox.hold_leases(hold=False)
        assert [one.message.id for _, one in await next_frames] == ["a"]

    asyncio.run(run())


def test_leases_that_the_session_takes_back_are_given_back():
    """The newest ones, when the consumer wants fewer. Those that are expired are not written either."""

    async def run():
        held, given_back = ByteBudget(1_000, "the streams"), []
        outbox = an_outbox(held, given_back)
        most = 3
        outbox.session = SimpleNamespace(
            take_back=lambda one: one.message.at_ms <= NOW or len(outbox._leases) >= most
        )
        outbox.leased([lease(name) for name in "abcde"])
        outbox.give_back_unwanted()
        assert (given_back, held.held) == (["e", "d"], 6)
        outbox.leased([lease("old", at_ms=NOW)])
        assert [one.message.id for _, one in await outbox.next()] == ["a", "b", "c"]
        assert (given_back, held.held) == (["e", "d", "old"], 0)

    asyncio.run(run())
