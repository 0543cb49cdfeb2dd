"""Reads a list of which the server gives one page at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from strandline.client.transport import Transport

_LARGEST_PAGE = 1000

_Item = TypeVar("_Item")
_Item_co = TypeVar("_Item_co", covariant=True)


class _Page(Protocol[_Item_co]):
    @property
    def items(self) -> Sequence[_Item_co]: ...


def read_pages(
    transport: Transport,
    path: str,
    kind: type[_Page[_Item]],
    limit: int,
    after: str | int,
    place: Callable[[_Item], str | int],
) -> list[_Item]:
    """At most `limit` items after a place. `place` is that of an item, for the next page."""
    found: list[_Item] = []
    while len(found) < limit:
        size = min(limit - len(found), _LARGEST_PAGE)
        page = transport.get(path, kind, {"limit": size, "after": after}).items
        found += page
        if len(page) < size:
            break
        after = place(page[-1])
    return found
