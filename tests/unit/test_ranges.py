"""Cutting a range out of a partition, compared with a flat list of all its records; and retries."""

import itertools
import pickle

import pytest

from strandline.errors import Invalid, Unavailable
from strandline.log.cursors import Span
from strandline.log.model import StorageInfo
from strandline.log.ranges import PartitionRange, Piece, cut, patiently
from strandline.log.storage.registry import KafkaConfiguration


def test_a_cut_has_exactly_the_records_between_two_indexes():
    """The cut is exact for all small timelines, any number of expired records and any two indexes."""
    for sizes in itertools.product(range(3), repeat=3):
        for gone in itertools.product(*(range(size + 1) for size in sizes)):
            spans = [Span(n, first, size - 1) for n, (first, size) in enumerate(zip(gone, sizes, strict=True), 1)]
            ever = [(span.order, offset) for span in spans for offset in range(span.size)]
            there = [(span.order, offset) for span in spans for offset in range(span.first, span.size)]
            for start, end in itertools.combinations_with_replacement(range(len(ever) + 1), 2):
                found = [
                    (span.order, offset)
                    for span, first, last in cut(spans, start, end)
                    for offset in range(first, last + 1)
                ]
                assert found == [record for record in ever[start:end] if record in there]


def test_a_range_travels_with_references_to_secrets_only():
    """A pickled range has the name of the variable; the worker reads its value."""
    kafka = KafkaConfiguration("broker:9092", {"sasl.password": "env:KAFKA_PASSWORD"})
    piece = Piece(1, StorageInfo("k", "kafka", kafka_configuration=kafka), "topic", 0, 9)
    part = PartitionRange("orders", 0, (piece,), "data")
    assert pickle.loads(pickle.dumps(part)) == part
    assert part.size == 10
    assert not part.of_one_machine
    assert b"env:KAFKA_PASSWORD" in pickle.dumps(part)


class Flaky:
    def __init__(self, failures, error=Unavailable) -> None:
        self.failures, self.error, self.calls = failures, error, 0

    def __call__(self):
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error("not now", retry_after=0.001)
        return self.calls


def test_what_is_unavailable_is_tried_again():
    """A query does not end because a broker restarts."""
    assert patiently(Flaky(3)) == 4


def test_patience_ends():
    """The error of a storage that stays unavailable is raised unchanged."""
    with pytest.raises(Unavailable, match="not now"):
        patiently(Flaky(10**9), seconds=0.02)


def test_other_errors_are_not_repeated():
    """A retry would not fix other errors."""
    flaky = Flaky(1, Invalid)
    with pytest.raises(Invalid):
        patiently(flaky)
    assert flaky.calls == 1
