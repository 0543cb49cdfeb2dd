"""A store of feeds of which a part fails."""

from __future__ import annotations

from strandline.errors import Unavailable
from strandline.feeds.model import AppendEntry, Applied, feeds_of


class PartlyDown:
    """A store in which some feeds cannot be reached."""

    def __init__(self, store, down: set[str]) -> None:
        self._store = store
        self.down = down

    def apply(self, operations) -> list[Applied]:
        found = []
        for one in operations:
            failed = {name: Unavailable("the shard is down") for name in feeds_of(one) if name in self.down}
            rest = AppendEntry(one.time, one.entry, tuple(name for name in one.feeds if name not in failed))
            found.append(Applied(self._store.apply([rest])[0].accepted, failed))
        return found

    def __getattr__(self, name: str):
        return getattr(self._store, name)
