"""Random appends of all sizes, compactions, purges, seals and restarts, compared with plain lists."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from storage_place import DAY_MS, NOW_MS, compact

from strandline.errors import Sealed
from strandline.log.records import NewRecords
from strandline.log.storage import Bounds, compaction
from strandline.log.storage.sqlite import SqliteStorage

TOPIC = "t"
PARTITIONS = 2
# Purging may leave records for so long in the batch of younger ones.
LAG_MS = compaction._RUN_MS

partitions = st.integers(0, PARTITIONS - 1)
times = st.sampled_from([NOW_MS, NOW_MS + 1, NOW_MS + 30_000, NOW_MS + 90_000, NOW_MS + 300_000])
values = st.binary(max_size=6)
keys = st.none() | st.binary(max_size=2)
headers = st.none() | st.lists(st.tuples(st.text(max_size=2), st.binary(max_size=2)), max_size=2)


@st.composite
def appends(draw: st.DrawFn) -> NewRecords:
    new = draw(st.lists(values, min_size=1, max_size=4)) * draw(st.sampled_from([1, 1, 1, 2, 30, 700]))
    with_keys, with_headers = draw(st.booleans()), draw(st.booleans())
    return NewRecords(
        draw(times),
        new,
        [draw(keys)] * len(new) if with_keys else None,
        [draw(headers)] * len(new) if with_headers else None,
    )


class StorageMachine(RuleBasedStateMachine):
    """The model of a partition is its first offset, and a row for every record from there on."""

    def __init__(self) -> None:
        super().__init__()
        self._place = tempfile.TemporaryDirectory()
        self.directory = Path(self._place.name)
        self.rows: list[list[tuple[object, ...]]] = [[] for _ in range(PARTITIONS)]
        self.first = [0] * PARTITIONS
        self.sealed = False

    @initialize()
    def create(self) -> None:
        self.storage = SqliteStorage(self.directory)
        self.storage.create_topic(TOPIC, PARTITIONS, DAY_MS)

    def teardown(self) -> None:
        self.storage.close()
        self._place.cleanup()

    @rule(new=st.dictionaries(partitions, appends(), min_size=1), waits=st.booleans())
    def append(self, new, waits) -> None:
        future = self.storage.append(TOPIC, new, waits=waits)
        if self.sealed:
            with pytest.raises(Sealed):
                future.result(30)
            return
        for partition, placed in future.result(30).items():
            end = self.first[partition] + len(self.rows[partition])
            assert list(placed.offsets) == [*range(end, end + len(new[partition]))]
            self.rows[partition] += rows_of(new[partition])

    @rule()
    def compact(self) -> None:
        compact(self.storage, TOPIC)

    @rule()
    def restart(self) -> None:
        self.storage.close()
        self.storage = SqliteStorage(self.directory)

    @rule(before_ms=times)
    def purge(self, before_ms) -> None:
        removed = self.storage.purge(TOPIC, before_ms)
        for partition, bounds in enumerate(self.storage.bounds(TOPIC)):
            gone = bounds.first - self.first[partition]
            removed -= gone
            stamps = [row[0] for row in self.rows[partition]]
            assert all(stamp < before_ms for stamp in stamps[:gone])
            if gone < len(stamps):  # the oldest batch has a record that may stay
                assert max(stamps[gone : gone + 3_000]) >= before_ms - LAG_MS
            del self.rows[partition][:gone]
            self.first[partition] += gone
        assert removed == 0

    @rule(seal=st.booleans())
    def seal(self, seal) -> None:
        (self.storage.seal if seal else self.storage.unseal)(TOPIC, "token")
        self.sealed = seal

    @rule(partition=partitions, skip=st.integers(0, 3_000), most=st.sampled_from([1, 7, 100, 10_000]))
    def read(self, partition, skip, most) -> None:
        first, rows = self.first[partition], self.rows[partition]
        start = min(skip, len(rows))
        batch = self.storage.read(TOPIC, partition, first + start, max_records=most, max_bytes=1 << 20)
        assert bool(batch.num_rows) == (start < len(rows))
        assert batch.num_rows <= most
        assert batch["offset"].to_pylist() == [*range(first + start, first + start + batch.num_rows)]
        assert read_rows(batch) == rows[start : start + batch.num_rows]

    @rule(partition=partitions, time_ms=times)
    def find(self, partition, time_ms) -> None:
        stamps = [row[0] for row in self.rows[partition]]
        expected = next((n for n, stamp in enumerate(stamps) if stamp >= time_ms), len(stamps))
        assert self.storage.find(TOPIC, partition, time_ms) == self.first[partition] + expected

    @invariant()
    def bounds(self) -> None:
        with suppress(AttributeError):  # before `create`
            found = self.storage.bounds(TOPIC)
            ends = zip(self.first, self.rows, strict=True)
            assert found == [Bounds(first, first + len(rows) - 1) for first, rows in ends]


def rows_of(new: NewRecords) -> list[tuple[object, ...]]:
    none = [None] * len(new)
    each = zip(new.keys or none, new.values, new.headers or none, strict=True)
    return [(new.timestamp_ms, key, value, head or None) for key, value, head in each]


def read_rows(batch) -> list[tuple[object, ...]]:
    return [
        (
            row["timestamp"],
            row["key"],
            row["value"],
            [(head["key"], head["value"]) for head in row["headers"]] if row["headers"] else None,
        )
        for row in batch.to_pylist()
    ]


TestStorageMachine = StorageMachine.TestCase
TestStorageMachine.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
