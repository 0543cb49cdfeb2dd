"""What exists: the port and one module per engine."""

from strandline.log.catalog.port import Catalog, StorageBook, SwitchBook, SwitchEffect

__all__ = ["Catalog", "StorageBook", "SwitchBook", "SwitchEffect"]
