"""Where feeds are stored: the port and its adapters."""

from strandline.feeds.storage.port import FeedStore

__all__ = ["FeedStore"]
