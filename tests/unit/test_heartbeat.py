"""A heartbeat renews a lease in time, retries after failures, and stops."""

from __future__ import annotations

import threading
import time

from services import until
from strandline.engine.heartbeat import Heartbeat
from strandline.errors import Unavailable


class Lease:
    """Counts its renewals, which fail while `error` is set."""

    def __init__(self) -> None:
        self.attempts = 0
        self.renewed = 0
        self.error: Exception | None = None

    def renew(self) -> None:
        self.attempts += 1
        if self.error is not None:
            raise self.error
        self.renewed += 1


def test_it_renews_again_and_again_until_it_is_stopped():
    """No renewal runs after `stop`, which may be called twice."""
    lease = Lease()
    heartbeat = Heartbeat("renewing", lease.renew, 3)
    with heartbeat:
        until(lambda: lease.renewed >= 3)
    after = lease.attempts
    heartbeat.stop()
    assert not threading.Event().wait(0.02)
    assert lease.attempts == after


def test_the_interval_is_a_third_of_the_lease_or_less():
    """Two renewals may fail before the lease expires."""
    lease = Lease()
    assert Heartbeat("renewing", lease.renew, 6_000)._interval == 2
    assert Heartbeat("renewing", lease.renew, 6_000, longest=1)._interval == 1
    assert Heartbeat("renewing", lease.renew, 1_500, longest=1)._interval == 0.5


def test_failures_are_retried_sooner_and_logged_once(caplog):
    """The first of consecutive failures is logged, and the heartbeat continues."""
    lease = Lease()
    lease.error = Unavailable("no connection")
    with Heartbeat("renewing", lease.renew, 30):
        until(lambda: lease.attempts >= 5)
        lease.error = None
        until(lambda: lease.renewed)
        lease.error = Unavailable("no connection again")
        until(lambda: "no connection again" in caplog.text)
    assert caplog.messages == [
        "renewing failed; retrying: no connection",
        "renewing failed; retrying: no connection again",
    ]


def test_an_unexpected_error_does_not_end_it(caplog):
    """The error is logged with its traceback."""
    lease = Lease()
    lease.error = ValueError("a bug")
    with Heartbeat("renewing", lease.renew, 3):
        until(lambda: lease.attempts >= 2)
        lease.error = None
        until(lambda: lease.renewed)
    assert "Traceback" in caplog.text


def test_stopping_does_not_wait_for_the_interval():
    """A process with long leases can end at once."""
    began = time.monotonic()
    with Heartbeat("renewing", Lease().renew, 600_000):
        pass
    assert time.monotonic() - began < 60
