"""The checker of a schedule's history finds every kind of fault, and no fault in what is allowed."""

import pytest
from schedule_history import ScheduleHistory

LEASE_MS = 1_000


class Story:
    """Writes the history of the message `m`, created at 0 and due at 100, with the version 10."""

    def __init__(self) -> None:
        self.lines = []
        self.act("create", 0, version=10, at_ms=100, body=7)

    def act(self, kind, at, *, took=5, code=None, version=None, **asked):
        """An act that was answered, unless `took` is None. `version` is that of the answer."""
        ref = f"r{len(self.lines)}"
        self.lines.append({"what": "asked", "kind": kind, "id": "m", "ref": ref, "at": at, **asked})
        if "of" in asked:
            self.lines[-1]["version"] = asked["of"]
        if took is not None:
            moment = asked["at_ms"] if "at_ms" in asked else at + asked.get("in_ms", 0)
            answer = {"status": "error" if code else "ok", "code": code, "version": version, "at_ms": moment}
            self.lines.append({"what": "answered", "ref": ref, "at": at + took, **answer})
        return self

    def lease(self, version, begin, *, consumer="ada", due=100, count=1, pulled=False, **other):
        line = {"what": "lease", "id": "m", "version": version, "consumer": consumer, "lease_ms": LEASE_MS}
        line |= {
            "expires_ms": begin + LEASE_MS,
            "at": begin + 2,
            "due_ms": due,
            "delivery_count": count,
            "body": 7,
        }
        self.lines.append({**line, **({"asked_ms": begin - 1} if pulled else {}), **other})
        return self

    def done(self, at, of, consumer="ada"):
        return self.act("delete", at, version=of + 1, of=of, consumer=consumer)

    def faults(self):
        return [fault.removeprefix("m: ").partition(":")[0] for fault in ScheduleHistory(self.lines).faults()]


# -- what is allowed


def test_a_message_is_leased_and_deleted():
    assert Story().lease(11, 100).done(200, 11).faults() == []


def test_a_message_is_leased_again_after_its_lease_ended():
    story = Story().lease(11, 100).lease(12, 1_100, consumer="bob", count=2).done(1_200, 12, "bob")
    assert story.faults() == []


def test_a_released_message_is_due_at_its_new_moment():
    story = Story().lease(11, 100).act("release", 200, version=12, of=11, consumer="ada", at_ms=300)
    story.lease(13, 300, due=300, consumer="bob", count=2).done(400, 13, "bob")
    assert story.faults() == []


def test_a_message_may_be_released_without_an_answer():
    """Another consumer has it before the end of the first lease, two versions later."""
    story = Story().lease(11, 100).act("release", 200, took=None, of=11, consumer="ada", in_ms=50)
    story.lease(13, 251, due=251, consumer="bob", count=2).done(400, 13, "bob")
    assert story.faults() == []


def test_a_lease_is_handed_back_to_its_consumer():
    """With the same end, also after an extension."""
    story = Story().lease(11, 100).lease(12, 100, count=2, at=300)
    story.act("extend", 400, version=13, of=12, consumer="ada", in_ms=LEASE_MS)
    story.lease(14, 400, count=3, at=500).done(600, 14)
    assert story.faults() == []


def test_a_create_may_be_repeated():
    """The first answer was lost. The message was gone before the second one."""
    story = Story()
    story.lines.clear()
    story.act("create", 0, took=None, in_ms=100, body=7).lease(11, 110, due=103).done(200, 11)
    story.act("create", 300, code="already_exists", in_ms=100, body=7)
    assert story.faults() == []


def test_an_owner_moves_and_cancels():
    story = Story().act("move", 50, version=11, at_ms=500).act("cancel", 100, version=12)
    assert story.faults() == []


def test_a_message_without_an_answer_may_be_missing():
    story = Story()
    story.lines.clear()
    assert story.act("create", 0, took=None, at_ms=100, body=7).faults() == []


def test_a_repeated_delete_has_the_version_of_the_first():
    story = Story().lease(11, 100).done(200, 11)
    story.act("delete", 300, version=12, of=11, consumer="ada")
    story.lines[-1]["code"] = "already_deleted"
    assert story.faults() == []


# -- faults


@pytest.mark.parametrize("begin", [99, 0])
def test_an_early_lease(begin):
    """By the clock of the database. A node whose clock is ahead gives such leases."""
    assert "early" in Story().lease(11, begin, at=150).done(200, 11).faults()


def test_a_lease_that_arrives_early():
    """By the clock of the consumer's machine."""
    assert "early" in Story().lease(11, 100, at=99).done(200, 11).faults()


def test_a_lease_before_the_moment_to_which_the_message_was_moved():
    """The answer to the move came before. The lease still has the old moment."""
    story = Story().act("move", 50, version=11, at_ms=900).lease(12, 100).done(200, 12)
    assert story.faults() == ["due at a moment that nobody asked for"]


def test_a_lease_by_the_clock_of_a_node_that_is_ahead():
    assert Story().lease(11, 500, at=150).done(200, 11).faults() == ["not by the clock of the database"]


def test_a_lease_by_the_clock_of_a_node_that_is_behind():
    story = Story().lease(11, 600, pulled=True, asked_ms=1_000, at=1_010).done(1_020, 11)
    assert story.faults() == ["not by the clock of the database"]


def test_overlapping_leases():
    story = Story().lease(11, 100).lease(12, 1_099, consumer="bob", count=2).done(1_200, 12, "bob")
    assert story.faults() == ["two active leases"]


def test_overlapping_leases_after_an_extension():
    story = Story().lease(11, 100).act("extend", 900, version=12, of=11, consumer="ada", in_ms=LEASE_MS)
    story.lease(13, 1_500, consumer="bob", count=2).done(1_600, 13, "bob")
    assert story.faults() == ["two active leases"]


def test_overlapping_leases_of_one_consumer():
    """A pull returns only new leases."""
    story = Story().lease(11, 100, pulled=True).lease(12, 600, pulled=True, count=2).done(700, 12)
    assert story.faults() == ["two active leases"]


def test_a_change_without_an_answer_does_not_explain_the_next_version():
    """A release takes a version, so the next lease has the one after it."""
    story = Story().lease(11, 100).act("release", 200, took=None, of=11, consumer="ada", at_ms=300)
    story.lease(12, 300, due=300, consumer="bob", count=2).done(400, 12, "bob")
    assert story.faults() == ["two active leases"]


def test_a_repeated_version():
    story = Story().lease(11, 100).lease(11, 1_200, consumer="bob", count=2).done(1_300, 11, "bob")
    assert story.faults() == ["version 11 was given twice"]


def test_a_change_with_the_version_of_another_one():
    story = Story().lease(11, 100).act("move", 1_150, version=11, at_ms=1_150).lease(12, 1_200, due=1_150, count=2)
    assert "version 11 was given twice" in story.done(1_300, 12).faults()


def test_a_stale_holder_that_is_not_refused():
    story = Story().lease(11, 100).lease(12, 1_100, consumer="bob", count=2)
    assert "a stale delete was accepted" in story.act("delete", 1_200, version=13, of=11, consumer="ada").faults()


def test_a_delete_after_the_end_of_the_lease():
    assert Story().lease(11, 100).done(1_101, 11).faults() == ["delete after the end of the lease"]


def test_a_delete_by_somebody_else():
    story = Story().lease(11, 100).done(200, 11, "bob")
    assert story.faults() == ["delete by somebody who is not the holder"]


@pytest.mark.parametrize("kind", ["move", "cancel"])
def test_a_change_by_the_owner_during_a_lease(kind):
    story = Story().lease(11, 100).act(kind, 200, version=12, at_ms=300)
    assert f"{kind} by the owner during a lease" in story.faults()


def test_a_lost_message():
    """It was acknowledged, and at the end it is gone although nobody asked for that."""
    assert Story().faults() == ["lost"]
    assert Story().lease(11, 100).faults() == ["lost"]
    refused = Story().lease(11, 100).act("delete", 1_200, code="lease_expired", of=11, consumer="ada")
    assert refused.faults() == ["lost"]


def test_a_message_that_comes_back_after_its_deletion():
    story = Story().lease(11, 100).done(200, 11).lease(13, 300, consumer="bob", count=2)
    assert story.faults() == ["leased after its deletion"]


def test_a_message_that_nobody_created():
    story = Story()
    story.lines.clear()
    assert "never created" in story.lease(11, 100).faults()


def test_a_body_of_another_message():
    assert Story().lease(11, 100, body=8).done(200, 11).faults() == ["a body that nobody created"]


def test_a_delivery_that_is_not_counted():
    story = Story().lease(11, 100).lease(12, 1_100, consumer="bob", count=1).done(1_200, 12, "bob")
    assert story.faults() == ["a delivery was not counted"]


def test_an_error_of_a_client():
    story = Story().lease(11, 100).done(200, 11)
    story.lines.append({"what": "error", "text": "500"})
    assert len(story.faults()) == 1
