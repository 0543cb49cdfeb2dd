"""How many bytes requests and streams may hold."""

from __future__ import annotations

import pytest

from strandline.errors import Unavailable
from strandline.server.byte_budget import ByteBudget, Holding


def test_bytes_are_held_up_to_the_limit_and_released():
    """A refused request adds nothing, and its bytes are released at its end."""
    budget = ByteBudget(10, "the requests")
    with Holding(budget) as first:
        first.add(4)
        first.add(4)
        with Holding(budget) as second:
            second.add(2)
            with pytest.raises(Unavailable, match="10 bytes"):
                second.add(1)
            assert budget.held == 10
        assert budget.held == 8
    assert budget.held == 0


def test_bytes_that_are_in_memory_already_always_count():
    """They may exceed the limit; then others are refused."""
    budget = ByteBudget(10, "the streams")
    with Holding(budget) as stream:
        stream.add_anyway(11)
        with pytest.raises(Unavailable), Holding(budget) as other:
            other.add(1)
    assert budget.held == 0
