"""Record batches that are written without Arrow are byte for byte those of Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.log import records
from strandline.log.records import NewRecords
from strandline.log.storage import ipc, stored_batches

BATCHES = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=5)), min_size=1, max_size=40)


def by_arrow(columns: list[list[bytes]]) -> pa.RecordBatch:
    arrays = [pa.array(column, pa.binary()) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=records.STORED[len(columns) - 1])


@given(BATCHES)
def test_messages_are_those_of_arrow(rows):
    values, keys = (list(column) for column in zip(*rows, strict=True))
    for columns in ([values], [values, keys]):
        expected = by_arrow(columns)
        written = ipc.message(columns)
        assert written == expected.serialize().to_pybytes()
        assert pa.ipc.read_record_batch(pa.py_buffer(written), expected.schema).equals(expected)


@pytest.mark.parametrize("number", [17, 128, 129])
@pytest.mark.parametrize("keys", ["none", "all", "some"])
@pytest.mark.parametrize("headers", [False, True])
def test_batches_are_the_same_on_both_ways(monkeypatch, number, keys, headers):
    part = NewRecords(
        5,
        [b"%d" % n for n in range(number)],
        {"none": None, "all": [b"k"] * number, "some": [None, *[b"k"] * (number - 1)]}[keys],
        [[("h", b"1")]] * number if headers else None,
    )
    (written,) = stored_batches.encode([part])
    monkeypatch.setattr(stored_batches, "_IPC_RECORDS", 0)
    (expected,) = stored_batches.encode([part])
    assert bytes(written.payload) == bytes(expected.payload)
    assert (written.records, written.layout, written.digest) == (number, expected.layout, expected.digest)
    assert (written.min_timestamp, written.max_timestamp) == (5, 5)
