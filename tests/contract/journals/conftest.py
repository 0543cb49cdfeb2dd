"""The journal room, in process and over HTTP: every test in this directory that asks for `rooms` runs on both."""

from __future__ import annotations

import itertools

import pytest

from strandline.client import Remote
from strandline.journal import Journal
from strandline.platform import Platform

_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"accounts-{next(_numbers)}"


@pytest.fixture
def journal(rooms: Platform | Remote, name: str) -> Journal:
    rooms.journals.create(name, partitions=3)
    return rooms.journal(name)
