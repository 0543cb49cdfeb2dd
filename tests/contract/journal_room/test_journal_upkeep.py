"""Expiry, trimming, forgetting deleted topics, and metrics."""

from __future__ import annotations

import pytest
from journal_node import replicate

from strandline.errors import Conflict, Unavailable
from strandline.journal import upkeep


def alive(journal, *entities):
    return [entity for entity in entities if journal.pointer(entity).seq_nr]


def test_all_journals_that_are_due_are_purged_through_the_log(node, journal, topic, clock, monkeypatch):
    """However many they are, and though the purges are not replicated meanwhile."""
    monkeypatch.setattr(upkeep, "_AT_ONCE", 2)
    entities = [f"e{n}" for n in range(9)]
    for n, entity in enumerate(entities):
        journal.append(entity, [1], expected=0, expire_after_ms=1000 + n)
    journal.append("stays", [1], expected=0)
    replicate(node, topic)
    node.journals.upkeep.run()
    assert alive(journal, *entities) == entities
    clock.advance(1007)
    node.journals.upkeep.run()
    assert alive(journal, *entities, "stays") == ["e8", "stays"]
    replicate(node, topic)
    assert alive(journal, *entities, "stays") == ["e8", "stays"]
    clock.advance(100_000_000)
    node.journals.upkeep.run()
    assert alive(journal, *entities, "stays") == ["stays"]


def test_sweeping_again_before_replication_writes_nothing_more(node, opened, journal, topic, clock):
    journal.append("a", [1], expected=0, expire_after_ms=10)
    replicate(node, topic)
    clock.advance(11)
    other = opened()
    for one in (node, node, other):
        one.journals.upkeep.run()
    found = node.journals.topic(topic)
    ends = [node.log.raw.end(topic, partition).offset for partition in range(found.partitions)]
    assert sum(end + 1 for end in ends) == 2


def test_a_journal_that_got_an_append_after_it_was_replicated_stays(node, journal, topic, clock):
    journal.append("a", [1], expected=0, expire_after_ms=10)
    replicate(node, topic)
    journal.append("a", [2], expected=1)
    clock.advance(11)
    node.journals.upkeep.run()
    assert len([*journal.read("a")]) == 2
    replicate(node, topic)
    node.journals.upkeep.run()
    assert len([*journal.read("a")]) == 2


def test_a_late_append_makes_the_purge_void(node, journal, topic, clock):
    """Two sweepers read the store at the same time; between their purges the journal gets an append."""
    from strandline.journal.model import Purge  # noqa: PLC0415

    journal.append("a", [1], expected=0, expire_after_ms=10)
    replicate(node, topic)
    found = node.journals.topic(topic)
    clock.advance(11)
    [(entity, cursor)] = node.journals.store().expired(found.id, clock.now_ms(), 10)
    journal.append("a", [2], expected=1)
    partition = node.journals.action_log.partition(found, entity)
    node.journals.action_log.write(found, partition, [(entity, Purge(cursor), None)])
    assert len([*journal.read("a")]) == 2


def test_what_the_store_has_of_a_deleted_topic_is_forgotten(node, journals, journal, topic):
    journal.append("a", [1], expected=0)
    journal.save_snapshot("a", 1, "x")
    replicate(node, topic)
    old = journals.topic(topic).id
    node.log.delete(topic)
    journals.create(topic, partitions=2)
    assert [*journal.read("a")] == []
    journal.append("a", ["new"], expected=0)
    replicate(node, topic)
    journals.upkeep.run()
    assert journals.store().topics() == [journals.topic(topic).id]
    assert journals.store().pointers(old) == {}
    assert len([*journal.read("a")]) == 1


def test_actions_that_are_old_and_replicated_are_removed_from_the_log(node, opened, journal, topic, clock):
    day = 86_400_000
    journal.append("a", [1, 2], expected=0)
    clock.advance(day + 1)
    node.journals.upkeep.run()
    assert len([*opened().journal(topic).read("a")]) == 2
    replicate(node, topic)
    journal.append("a", [3], expected=2)
    clock.advance(day - 1)
    node.journals.upkeep.run()
    partition = node.journals.action_log.partition(node.journals.topic(topic), "a")
    assert node.log.raw.first(topic, partition).offset >= 1
    assert [event.seq_nr for event in opened().journal(topic).read("a")] == [1, 2, 3]
    clock.advance(day)
    node.journals.upkeep.run()
    assert [event.seq_nr for event in opened().journal(topic).read("a")] == [1, 2, 3]
    journal.append("a", [4], expected=3)
    assert opened().journal(topic).pointer("a").seq_nr == 4


def test_metrics(node, journals, journal, topic):
    journal.append("a", [1], expected=0)
    journal.append("b", [1], expected=0)
    with pytest.raises(Conflict):
        journal.append("a", [1], expected=0)
    journals.upkeep.measure()
    gauges = {metric.name: values for metric, values in journals.gauges().items()}
    assert gauges["strandline_journal_replication_lag"][topic] >= 3
    assert gauges["strandline_journal_dead_letters"] == {topic: 0}
    replicate(node, topic)
    journals.upkeep.measure()
    gauges = {metric.name: values for metric, values in journals.gauges().items()}
    assert gauges["strandline_journal_replication_lag"] == {topic: 0}
    assert {metric.name: values for metric, values in journals.counts().items()} == {
        "strandline_journal_void_appends": {topic: 1}
    }


def test_a_room_is_ready_while_its_store_answers(journals, journal):
    journals.check_ready()
    journal.append("a", [1], expected=0)
    journals.check_ready()


def test_a_closed_room_refuses_calls(opened, topic):
    node = opened()
    journal = node.journal(topic)
    journal.append("a", [1], expected=0)
    node.close()
    with pytest.raises(Unavailable):
        journal.append("a", [2], expected=1)
