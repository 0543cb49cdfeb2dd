"""The position of a streaming query: one text per position, and fair shares."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Invalid
from strandline.pipeline import positions
from strandline.pipeline.positions import QueryPosition, shares


def test_equal_places_are_equal_texts():
    """Equal positions have the same JSON in any order of keys, and the JSON parses to the same positions."""
    one = {
        "b": QueryPosition("2", {"1": "x", "0": "y"}),
        "a": QueryPosition("1", {"10": "z", "9": "w"}, {"9": 3, "10": 4}),
    }
    other = {
        "a": QueryPosition("1", {"9": "w", "10": "z"}, {"10": 4, "9": 3}),
        "b": QueryPosition("2", {"0": "y", "1": "x"}),
    }
    assert json.dumps(positions.dump(one)) == json.dumps(positions.dump(other))
    assert positions.parse(json.loads(json.dumps(positions.dump(one)))) == one


def test_an_offset_of_something_else_is_refused():
    """The checkpoint of another source is Invalid."""
    with pytest.raises(Invalid, match="not an offset of a Strandline source"):
        positions.parse({"orders": {"0": 12}})


@given(st.dictionaries(st.integers(), st.integers(0, 1000), max_size=8), st.integers(1, 2000))
def test_shares_use_the_limit_and_are_as_even_as_the_lags_allow(lags, limit):
    """The limit is used up to the total lag, and no share exceeds that of a waiting partition by more than 1."""
    given_ = shares(lags, limit)
    assert given_.keys() == lags.keys()
    assert all(0 <= given_[key] <= lag for key, lag in lags.items())
    assert sum(given_.values()) == min(limit, sum(lags.values()))
    waiting = [given_[key] for key, lag in lags.items() if given_[key] < lag]
    assert max(given_.values(), default=0) <= min(waiting, default=1000) + 1


def test_what_cannot_be_shared_goes_to_the_largest():
    """No partition starves when there are more partitions than records to read."""
    assert shares({"a": 3, "b": 9, "c": 5}, 1) == {"a": 0, "b": 1, "c": 0}


def test_the_end_of_the_first_batch_knows_its_start():
    """If a query is killed in its first batch, Spark asks for the start again. Later ends have no `began`."""
    start = {"a": QueryPosition("1", {"0": "x"}), "b": QueryPosition("2", {"0": "x"})}
    end = {"a": QueryPosition("1", {"0": "y"}), "b": QueryPosition("2", {"0": "x"})}
    assert positions.with_beginning(start, end) == {
        "a": QueryPosition("1", {"0": "y"}, began={"0": "x"}),
        "b": QueryPosition("2", {"0": "x"}),
    }
