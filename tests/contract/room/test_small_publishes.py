"""Small publishes that no thread waits for: they are stored in groups, and each has its own outcome."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services import until
from strandline import EventType, Schema
from strandline.clock import system_clock
from strandline.engine.connect import Databases
from strandline.errors import Malformed, NotFound, Unavailable
from strandline.log.combining import QueuedJob
from strandline.log.gate import Gate
from strandline.log.local import LocalLog
from strandline.log.model import PublishReport
from strandline.log.open import open_log
from strandline.log.publish_groups import SmallPublish
from strandline.settings import Settings

NUMBERED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
METADATA = {"eid": "105a76d8-db49-4144-ace7-e683e8f4ba46", "occurred_at": "2024-05-01T12:00:00Z"}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LocalLog]:
    settings = Settings.load(env={}, flags={"log.publish_wait_ms": 600_000})
    with closing(Databases(tmp_path)) as databases:
        opened = open_log(tmp_path, databases, settings, system_clock())
        yield opened
        opened.close()


def together(log: LocalLog, name: str, *bodies: bytes, flow_id: str | None = None) -> list[object]:
    """The outcomes of publishes that form one group."""
    outcomes: dict[int, object] = {}
    group = [
        SmallPublish(body, flow_id, lambda outcome, number=number: outcomes.update({number: outcome}))
        for number, body in enumerate(bodies)
    ]
    log._publisher._start_group(name, group)
    until(lambda: len(outcomes) == len(bodies), "all outcomes")
    return [outcomes[number] for number in range(len(bodies))]


def stored(log: LocalLog, name: str) -> list[bytes]:
    return [value for batch in log.read(name) for value in batch.values]


def test_a_group_is_stored_as_it_was_sent(log):
    """Publishes keep their order and their bytes; a publish without events is one as well."""
    log.create(EventType("orders"))
    assert together(log, "orders", b'[{"n":1},{"n":2}]', b"[]", b'[{"n":3}]') == [
        PublishReport(2),
        PublishReport(0),
        PublishReport(1),
    ]
    assert stored(log, "orders") == [b'{"n":1}', b'{"n":2}', b'{"n":3}']


@pytest.mark.parametrize("bad", [b'[{"n":"x"}]', b"[1]", b"[{]", b'{"n":1}'])
def test_a_publish_that_breaks_a_rule_fails_alone(log, bad):
    """The other publishes of its group are stored."""
    log.create(EventType("orders", schema=Schema.json(NUMBERED)))
    first, refused, last = together(log, "orders", b'[{"n":1}]', bad, b'[{"n":3}]')
    assert (first, last) == (PublishReport(1), PublishReport(1))
    assert isinstance(refused, Malformed) or refused.rejected
    assert stored(log, "orders") == [b'{"n":1}', b'{"n":3}']


def test_events_with_metadata_are_enriched_one_publish_at_a_time(log):
    """Each publish has its own flow id."""
    log.create(EventType("facts", category="business"))
    body = json.dumps([{"metadata": METADATA, "n": 1}]).encode()
    assert together(log, "facts", body, body, flow_id="given") == [PublishReport(1)] * 2
    assert together(log, "facts", body, body) == [PublishReport(1)] * 2
    flow_ids = [json.loads(value)["metadata"]["flow_id"] for value in stored(log, "facts")]
    assert flow_ids[:2] == ["given", "given"]
    assert len({*flow_ids}) == 3


def test_an_unknown_event_type_is_not_found(log):
    """All publishes of the group get the error, and no state stays behind."""
    outcomes: list[object] = []
    for _ in range(3):
        log.submit_small("nobody", b"[]", None, outcomes.append)
    until(lambda: len(outcomes) == 3, "the outcomes")
    assert {type(outcome) for outcome in outcomes} == {NotFound}
    assert not log.node.has_gate("nobody")


@pytest.fixture
def release(monkeypatch) -> Callable[[Gate], None]:
    """Gates stay held until they are released with this, because no node ends a switch that does not exist."""
    original = Gate.release
    monkeypatch.setattr(Gate, "release", lambda _: None)
    return original


def test_publishes_that_wait_for_a_switch_hold_no_thread(log, release):
    """With more waiting event types than there are threads, another event type is published to."""
    names = [f"held-{number}" for number in range(300)]
    for name in [*names, "free"]:
        log.create(EventType(name))
    outcomes: list[object] = []
    for name in names:
        log.node.gate(name).hold()
        log.submit_small(name, b'[{"n":1}]', None, outcomes.append)
    free: list[object] = []
    log.submit_small("free", b'[{"n":1}]', None, free.append)
    until(lambda: free, "the free publish")
    assert (free, outcomes) == ([PublishReport(1)], [])
    for name in names:
        release(log.node.gate(name))
    until(lambda: len(outcomes) == len(names), "the waiting publishes")
    assert outcomes == [PublishReport(1)] * len(names)


def test_the_thread_that_opens_a_gate_stores_nothing(log, release, monkeypatch):
    """The node's own thread opens gates, and must not wait for a storage: also if a group is started anew."""
    log.create(EventType("orders", schema=Schema.json(NUMBERED)))
    helpers: set[int] = set()
    original = QueuedJob.help
    monkeypatch.setattr(QueuedJob, "help", lambda job: (helpers.add(threading.get_ident()), original(job)))
    gate = log.node.gate("orders")
    gate.hold()
    outcomes: list[object] = []
    group = [SmallPublish(body, None, outcomes.append) for body in (b'[{"n":1}]', b'[{"n":"x"}]')]
    starting = threading.Thread(target=log._publisher._start_group, args=("orders", group))
    starting.start()
    starting.join()
    release(gate)
    until(lambda: len(outcomes) == 2, "both outcomes")
    assert sorted(outcome.submitted for outcome in outcomes) == [0, 1]
    assert threading.get_ident() not in helpers


def test_the_publishes_of_a_group_that_is_refused_are_all_refused(log, release):
    """A gate that has reached its limit refuses the group."""
    log.create(EventType("orders"))
    gate = log.node.gate("orders")
    gate.hold()
    gate._max_waiting = 0
    outcomes = together(log, "orders", b'[{"n":1}]', b'[{"n":2}]')
    assert [type(outcome) for outcome in outcomes] == [Unavailable, Unavailable]
    release(gate)
    assert together(log, "orders", b'[{"n":1}]', b'[{"n":2}]') == [PublishReport(1)] * 2
