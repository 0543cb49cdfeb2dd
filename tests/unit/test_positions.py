"""Where a streaming query is: one text per position, and fair shares."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Invalid
from strandline.pipeline import positions
from strandline.pipeline.positions import QueryPosition, shares


def test_equal_places_are_equal_texts():
    """Whatever order they were made in, Spark sees the same JSON, and reads back the same places."""
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
    """A checkpoint that another source wrote is not guessed at."""
    with pytest.raises(Invalid, match="not an offset of a Strandline source"):
        positions.parse({"orders": {"0": 12}})


@given(st.dictionaries(st.integers(), st.integers(0, 1000), max_size=8), st.integers(1, 2000))
def test_shares_use_the_limit_and_are_as_even_as_the_lags_allow(lags, limit):
    """Nothing is given that is not there, nothing is left that fits, and nobody gets more than one who waits."""
    given_ = shares(lags, limit)
    assert given_.keys() == lags.keys()
    assert all(0 <= given_[key] <= lag for key, lag in lags.items())
    assert sum(given_.values()) == min(limit, sum(lags.values()))
    waiting = [given_[key] for key, lag in lags.items() if given_[key] < lag]
    assert max(given_.values(), default=0) <= min(waiting, default=1000) + 1


def test_what_cannot_be_shared_goes_to_the_largest():
    """So that none starves when there are more partitions than records to be read."""
    assert shares({"a": 3, "b": 9, "c": 5}, 1) == {"a": 0, "b": 1, "c": 0}


def test_the_end_of_the_first_batch_knows_its_start():
    """Spark asks for the start anew if the query dies in it; later ends do not carry it."""
    start = {"a": QueryPosition("1", {"0": "x"}), "b": QueryPosition("2", {"0": "x"})}
    end = {"a": QueryPosition("1", {"0": "y"}), "b": QueryPosition("2", {"0": "x"})}
    assert positions.with_beginning(start, end) == {
        "a": QueryPosition("1", {"0": "y"}, began={"0": "x"}),
        "b": QueryPosition("2", {"0": "x"}),
    }
