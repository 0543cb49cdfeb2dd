"""The feeds room, in process and over HTTP: every test in this directory that asks for `feeds` runs on both."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from strandline.client import Remote
from strandline.feeds import Feeds
from strandline.platform import Platform

_numbers = itertools.count(1)


@pytest.fixture
def feeds(rooms: Platform | Remote) -> Feeds:
    return rooms.feeds


@pytest.fixture
def new() -> Callable[[], str]:
    """Names that no other test uses."""
    return lambda: f"user:{next(_numbers)}"


@pytest.fixture
def feed(feeds: Feeds, new: Callable[[], str]) -> str:
    """A feed that exists and is empty."""
    name = new()
    feeds.set(name, [])
    return name
