"""Conversion of records to and from Arrow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.log import records
from strandline.log.records import READ, STORED, Columns, NewRecords, to_arrow, to_stored, with_offsets

headers = st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2)


@st.composite
def parts(draw: st.DrawFn) -> NewRecords:
    values = draw(st.lists(st.binary(max_size=20), max_size=6))
    column = {"min_size": len(values), "max_size": len(values)}
    keys = draw(st.none() | st.lists(st.none() | st.binary(max_size=3), **column))
    heads = draw(st.none() | st.lists(st.none() | headers, **column))
    return NewRecords(draw(st.integers(-(2**62), 2**62)), values, keys, heads)


def rows(part: NewRecords) -> list[tuple[object, ...]]:
    none = [None] * len(part)
    return [
        (part.timestamp_ms, key, value, head and [{"key": k, "value": v} for k, v in head])
        for key, value, head in zip(part.keys or none, part.values, part.headers or none, strict=True)
    ]


@given(st.lists(parts(), min_size=1, max_size=4))
def test_parts_become_one_batch_in_order(made):
    """The batch has every column of every part; missing keys and headers are null."""
    layout, batch = to_arrow(made)
    assert batch.schema == STORED[layout]
    found = [tuple(row.values())[1:] for row in with_offsets(0, [batch], [made[0].timestamp_ms]).to_pylist()]
    assert found == [row for part in made for row in rows(part)]


@given(parts(), st.integers(1, 60))
def test_splitting_keeps_every_record(part, most):
    """Pieces are in order and within the limit, unless a single record is larger."""
    pieces = list(part.split(most))
    assert [row for piece in pieces for row in rows(piece)] == rows(part)
    assert all(piece.size <= most or len(piece) == 1 for piece in pieces)
    assert sum(piece.size for piece in pieces) == part.size == sum(map(len, part.values))


@pytest.mark.parametrize("count", [1, 3])
def test_read_batches_have_offsets(count):
    """Offsets start at the given one and continue across batches."""
    stored = [to_arrow([NewRecords(1, [b"a", b"b"])])[1] for _ in range(count)]
    batch = with_offsets(40, stored, range(count))
    assert batch.schema == READ
    assert batch["offset"].to_pylist() == list(range(40, 40 + 2 * count))
    assert batch["value"].to_pylist() == [b"a", b"b"] * count
    assert batch["timestamp"].to_pylist() == [number for number in range(count) for _ in "ab"]


@given(st.lists(st.lists(parts(), min_size=1, max_size=2), min_size=1, max_size=4))
def test_batches_of_different_layouts_become_one(appends):
    """Batches with different columns can be joined, and every row keeps its timestamp."""
    stored = [to_arrow(made)[1] for made in appends]
    batch = with_offsets(0, stored, [made[0].timestamp_ms for made in appends])
    found = [tuple(row.values())[1:] for row in batch.to_pylist()]
    assert found == [row for made in appends for part in made for row in rows(part)]


def test_an_empty_batch_has_all_columns():
    """Callers do not have to handle an empty result separately."""
    assert (records.empty().num_rows, records.empty().schema) == (0, READ)


@given(st.lists(parts(), min_size=1, max_size=6))
def test_collected_records_are_the_same_as_parts(made):
    """Whether they are collected one by one or part by part."""
    columns = Columns()
    for part in made:
        if len(part) == 1 and part.keys is None and part.headers is None:
            columns.add(part.timestamp_ms, part.values[0])
        else:
            columns.add_all(part.timestamp_ms, part.values, part.keys, part.headers)
    assert len(columns) == sum(map(len, made))
    found = with_offsets(0, [columns.to_arrow()], [0]).to_pylist()
    assert [tuple(row.values())[1:] for row in found] == [row for part in made for row in rows(part)]


@given(st.lists(parts(), min_size=1, max_size=4))
def test_a_read_batch_can_be_stored_again(made):
    """With only the columns that its records need."""
    whole = with_offsets(7, [to_arrow([part])[1] for part in made], [part.timestamp_ms for part in made])
    layout, stored = to_stored(whole)
    assert stored.schema == STORED[layout]
    assert (
        with_offsets(7, [stored], [made[0].timestamp_ms if not len(whole) else whole["timestamp"][0].as_py()])
        == whole
    )
    assert ("key" in stored.schema.names) == any(key is not None for key in whole["key"].to_pylist())
