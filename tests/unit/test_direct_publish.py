"""A publish in one go: when it is possible, and what its caller is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from strandline.clock import ManualClock
from strandline.errors import NotFound, OutcomeUnknown, Sealed, Unavailable
from strandline.log.direct_publish import publish_directly
from strandline.log.gate import Gate
from strandline.log.model import CatalogEntry, EventType, PublishReport, Timeline
from strandline.log.preparation import CompiledEventType
from strandline.log.publish_attempt import PublishContext
from strandline.log.storage import FAILED, Placed, SealableStorage

ENTRY = CatalogEntry("id", EventType("orders"), (Timeline("t", "orders", 1, "default", "topic", "now"),))


class Place:
    """What a publish needs, with a storage that gives a prepared answer."""

    def __init__(self) -> None:
        self.gate = Gate(10, lambda: None)
        self.storage = Mock(spec=SealableStorage)
        self.storage.try_append.return_value = {0: Placed(range(1))}
        compiled = CompiledEventType.of(ENTRY, 1000)
        node: Any = SimpleNamespace(gate=lambda _: self.gate)
        event_types: Any = SimpleNamespace(compiled=lambda _: compiled)
        storages: Any = SimpleNamespace(get=lambda _: self.storage)
        self.context = PublishContext(node, Mock(), storages, event_types, ManualClock())

    def publish(self, *items: bytes) -> Any:
        try:
            return publish_directly(self.context, "orders", items or [b"{}"], None)
        finally:
            assert self.gate._running == 0


@pytest.fixture
def place() -> Place:
    return Place()


def test_what_was_stored_is_reported(place):
    """The records go to the active timeline."""
    assert place.publish() == PublishReport(1)
    ((topic, batches), _) = place.storage.try_append.call_args
    assert (topic, batches[0].values) == ("topic", [b"{}"])


def test_records_that_were_not_stored_are_reported(place):
    """Each event has its own outcome."""
    place.storage.try_append.return_value = {0: Placed([FAILED], NotFound("no such partition"))}
    assert place.publish().items[0].detail == "no such partition"


def test_events_that_break_a_rule_are_not_stored(place):
    """Nor is a publish without events."""
    assert place.publish(b"{}", b"5").items[1].step == "validating"
    assert publish_directly(place.context, "orders", [], None) == PublishReport(0)
    place.storage.try_append.assert_not_called()


def test_a_publish_that_would_have_to_wait_is_not_started(place):
    """A switch holds the gate."""
    place.gate.hold()
    assert place.publish() is None
    place.storage.try_append.assert_not_called()


@pytest.mark.parametrize("refusal", [Sealed("sealed", token="t"), NotFound("deleted"), None])
def test_what_was_prepared_can_be_stored_later(place, refusal):
    """Nothing is stored: a switch has closed the topic, or the append would have to wait."""
    place.storage.try_append.side_effect = [refusal]
    entry_id, prepared = place.publish()
    assert (entry_id, prepared.batches[0].values) == ("id", [b"{}"])


def test_an_unknown_outcome_is_reported(place):
    """The events may be stored, so the publish must not be tried again."""
    place.storage.try_append.side_effect = OutcomeUnknown("?")
    assert place.publish().items[0].detail == "outcome_unknown"


@pytest.mark.parametrize("trouble", [Unavailable("away"), ValueError("a bug"), KeyboardInterrupt()])
def test_other_errors_are_raised(place, trouble):
    """The gate is left in any case."""
    place.storage.try_append.side_effect = trouble
    with pytest.raises(type(trouble)):
        place.publish()
