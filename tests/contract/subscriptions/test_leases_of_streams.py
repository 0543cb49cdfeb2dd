"""Leases of a process's streams: a running node renews only the streams that it knows."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import strandline
from services import DEADLINE_S, until
from strandline import EventType
from strandline.errors import OutcomeUnknown, Unavailable
from strandline.log.subscriptions import Subscription
from strandline.log.subscriptions.session import StreamSession
from strandline.platform import Platform
from strandline.settings import Settings

QUICK = Settings.load(flags={"coordination.session_timeout_ms": 1_500})


@pytest.fixture
def platform(tmp_path) -> Iterator[Platform]:
    with strandline.open(tmp_path, settings=QUICK) as opened:
        opened.log.create(EventType("orders", partitions=2))
        opened.log.publish("orders", [{"n": n} for n in range(4)]).raise_for_failed()
        yield opened


@pytest.fixture
def subscription_id(platform) -> str:
    asked = Subscription("app", ("orders",), read_from="begin")
    return str(platform.log.subscriptions.create(asked)[0].id)


def read_all(consumer) -> list[int]:
    found: list[int] = []

    def everything() -> bool:
        batch = consumer.receive(timeout=0.1)
        if batch is not None:
            found.extend(event["n"] for event in batch.events)
        return len(found) >= 4

    until(everything, "both partitions")
    return sorted(found)


def test_a_goodbye_that_fails_costs_a_lease(platform, subscription_id, monkeypatch):
    """After a failed `leave` the lease expires, because the node renews only its open streams."""
    subscriptions = platform.log.subscriptions

    def away(_: str, *, forfeit: bool) -> None:
        raise Unavailable("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(subscriptions._store.leases, "leave", away)
        gone, stays = subscriptions.consume(subscription_id), subscriptions.consume(subscription_id)
        gone.close()
    assert read_all(stays) == [0, 1, 2, 3]
    stays.close()


def test_a_stream_whose_beginning_got_no_answer_costs_a_lease(platform, subscription_id, monkeypatch):
    """A stream that is in the store but has no consumer expires."""
    subscriptions = platform.log.subscriptions
    leases = subscriptions._store.leases
    join = leases.join

    def lost(*arguments: object) -> None:
        join(*arguments)
        raise OutcomeUnknown("the answer got lost")

    with monkeypatch.context() as patch:
        patch.setattr(leases, "join", lost)
        with pytest.raises(OutcomeUnknown):
            subscriptions.consume(subscription_id)
    with subscriptions.consume(subscription_id) as stays:
        assert read_all(stays) == [0, 1, 2, 3]


def test_a_storage_that_does_not_answer_costs_no_lease(platform, subscription_id, monkeypatch):
    """The leases of all streams are renewed while one stream waits for its storage."""
    subscriptions = platform.log.subscriptions
    leases, stuck, go, renewals = subscriptions._store.leases, threading.Event(), threading.Event(), []

    def check(_: StreamSession) -> None:
        stuck.set()
        assert go.wait(DEADLINE_S)

    renew = leases.renew
    monkeypatch.setattr(StreamSession, "check", check)
    monkeypatch.setattr(leases, "renew", lambda *arguments: renewals.append(renew(*arguments)))
    with subscriptions.consume(subscription_id) as consumer:
        assert stuck.wait(DEADLINE_S)
        before = len(renewals)
        until(lambda: len(renewals) > before + 5, "renewals")
        assert read_all(consumer) == [0, 1, 2, 3]
        go.set()
