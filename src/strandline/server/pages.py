"""Pages of lists of named things: `limit` asks for a page, `after` takes the `next` of the page before."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Protocol, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType


class PageQuery(Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET  # None would accept the text "null"
    after: str = ""


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Item = TypeVar("_Item", bound=_Named)


def page(items: Sequence[_Item], query: PageQuery) -> tuple[list[_Item], str | None]:
    """The items after `after` by name, all of them without `limit`. Then `next`, or None if no item follows."""
    rest = sorted((item for item in items if item.name > query.after), key=attrgetter("name"))
    if query.limit is UNSET or len(rest) <= query.limit:
        return rest, None
    found = rest[: query.limit]
    return found, found[-1].name
