"""The catalog: the port and its implementation in SQL."""

from strandline.log.catalog.port import Catalog, StorageBook, SwitchBook, SwitchEffect

__all__ = ["Catalog", "StorageBook", "SwitchBook", "SwitchEffect"]
