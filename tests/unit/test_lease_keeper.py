"""A process keeps its leases only while it gets work done."""

from __future__ import annotations

import json

from strandline.engine.lease_keeper import LeaseKeeper


class Registry:
    """Counts renewals."""

    def __init__(self) -> None:
        self.renewals: list[str] = []
        self.left = ""

    def renew(self, owner: str, progress: str = "") -> None:
        self.renewals.append(progress)
        self.owner = owner

    def leave(self, owner: str) -> None:
        self.left = owner


def test_a_process_without_a_successful_step_loses_its_leases(caplog):
    """The leases are not renewed after the stall timeout, which is logged once, and again after the next step."""
    now, registry = 0.0, Registry()
    keeper = LeaseKeeper("the leases", registry, 6_000, 10_000, steady=lambda: now)
    for seconds in (0, 10, 11, 12):
        now = seconds
        keeper.beat()
    assert (len(registry.renewals), keeper.stalled) == (2, True)
    assert [line for line in caplog.messages if "no step has succeeded for 10 s" in line] == caplog.messages[:1]
    keeper.worked()
    keeper.beat()
    assert (len(registry.renewals), keeper.stalled) == (3, False)


def test_the_stored_progress_says_when_a_step_last_succeeded():
    """Renewals store the progress, and each event type in it has the time of its last step."""
    registry = Registry()
    keeper = LeaseKeeper("the leases", registry, 6_000, 10_000)
    with keeper.alive():
        progress = keeper.meter.measure("orders", 1, {0: 0})
        keeper.register()
        (told,) = json.loads(registry.renewals[-1])
        assert told["worked_at"] == progress.worked_at != ""
    assert registry.left == keeper.owner
