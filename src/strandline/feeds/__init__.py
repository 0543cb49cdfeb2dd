"""Home timelines: append to many feeds, read newest first, merge and unmerge, in any order."""

from typing import TYPE_CHECKING

from strandline.lazy import lazy

if TYPE_CHECKING:
    from strandline.feeds.model import DeadOperation, Entry, FeedAnswer
    from strandline.feeds.room import Feeds
else:
    # Every command reads the settings of the feeds, and few need more of them.
    _HOMES = {"model": ("DeadOperation", "Entry", "FeedAnswer"), "room": ("Feeds",)}
    __getattr__, __dir__ = lazy(
        __name__, {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names}
    )

__all__ = ["DeadOperation", "Entry", "FeedAnswer", "Feeds"]
